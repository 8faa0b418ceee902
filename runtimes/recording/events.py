"""Events of a real run: the operations of every rank, with start and end.

    send      a message, from when it is posted        attend    the kernel calls of a rectangle
    receive   the same, at the rank that waits for it  merge     adding their results, after them
    arrive    adding sums that arrived

The `number` of an event is that of its row among the moves, or the attends, of the step in the
plan. Times are seconds of `time.perf_counter`, which the processes of a machine share.
"""

from typing import Literal

from ringloom.planner.ir import Plan

Kind = Literal["attend", "merge", "send", "receive", "arrive"]
Events = dict[tuple[Kind, int, int, int], tuple[float, float]]  # kind, rank, step, number: seconds
Recorded = tuple[Plan, Events]  # a pass and its events
