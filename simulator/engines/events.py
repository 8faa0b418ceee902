"""A clock: a heap of actions by time, with a counter that breaks ties.

Actions at the same time run in the order in which they were scheduled, so every run gives the same
result, bit for bit.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Clock:
    """The current time `now`, in seconds, and all scheduled actions."""

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._heap = list[tuple[float, int, Action, Any]]()

    def at(self, time: float, action: Action, argument: Any) -> None:
        """Schedules action(argument) at a time not before `now`."""
        self._order += 1
        heappush(self._heap, (time, self._order, action, argument))

    def run(self) -> int:
        """Runs all actions; returns the number of actions that were scheduled."""
        heap = self._heap
        while heap:
            self.now, _, action, argument = heappop(heap)
            action(argument)
        return self._order
