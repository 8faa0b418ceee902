"""Events of a real run: the operations of every rank, with start and end.

    send      a message, from when it is posted        attend    the kernel calls of a rectangle
    receive   the same, at the rank that waits for it  merge     adding their results, after them
    arrive    adding sums that arrived

An event is the `number`-th of its kind that a rank does in a step, in plan order, so it can be told
which row of the plan it was. Times are seconds of `time.perf_counter`, which the processes of a
machine share.
"""

from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from planner.ir import Plan

Kind = Literal["attend", "merge", "send", "receive", "arrive"]


@dataclass(frozen=True, slots=True)
class Event:
    """One operation of `rank` in `step`, from `start` to `end`, in seconds."""

    kind: Kind
    rank: int
    step: int
    number: int
    start: float
    end: float


Recorded = tuple[Plan, list[Event]]  # a pass and its events


class Step:
    """Numbers the events of one step, and adds them to a list."""

    def __init__(self, events: list[Event], step: int) -> None:
        self.events, self.step = events, step
        self.numbers = Counter[tuple[Kind, int]]()

    def __call__(self, kind: Kind, rank: int, start: float, end: float | None = None) -> None:
        """Add an event from `start` until now, or until `end`."""
        end = perf_counter() if end is None else end
        number = self.numbers[kind, rank]
        self.numbers[kind, rank] += 1
        self.events.append(Event(kind, rank, self.step, number, start, end))
