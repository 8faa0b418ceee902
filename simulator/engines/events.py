"""Time as one heap with a tie counter, which knows nothing of the actions that it runs.

Actions at the same time run in the order in which they were asked for, so a run is the same bit
for bit every time. A process is a generator: `yield` is the only way that time passes for it.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Clock:
    """The time `now`, in seconds, and all actions that are still to run."""

    __slots__ = ("_heap", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._heap = list[tuple[float, int, Action, Any]]()

    def at(self, time: float, action: Action, argument: Any) -> None:
        """Run action(argument) at a time from `now` on."""
        self._order += 1
        heappush(self._heap, (time, self._order, action, argument))

    def run(self) -> int:
        """Run until nothing is left to happen; returns how many actions were asked for in all."""
        heap = self._heap
        while heap:
            self.now, _, action, argument = heappop(heap)
            action(argument)
        return self._order
