"""Events of a real run: the operations of every rank, with start and end.

    send      a message, from when it is posted        attend    the kernel calls of a rectangle
    receive   a message, at its destination            merge     adding their results
    arrive    adding received sums

The `number` of an event is the index of its row among the moves, or the attends, of the step in the
plan. Times are seconds of `time.perf_counter`, which all processes of a machine share.
"""

from typing import Literal

from ringloom.planner.ir import Plan

Kind = Literal["attend", "merge", "send", "receive", "arrive"]
Events = dict[tuple[Kind, int, int, int], tuple[float, float]]  # kind, rank, step, number: seconds
Recorded = tuple[Plan, Events]  # a pass and its events
