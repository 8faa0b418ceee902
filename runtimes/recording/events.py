"""Events of a real run: the operations of every rank, with start and end.

    send      a message, from when it is posted        attend    the kernel calls of a rectangle
    receive   the same, at the rank that waits for it  merge     adding their results, after them
    arrive    adding sums that arrived

The `number` of an event is that of its row among the moves, or the attends, of the step in the
plan. Times are seconds of `time.perf_counter`, which the processes of a machine share.
"""

from dataclasses import dataclass
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
