"""Defines the events of a real run: the operations of every rank, with start and end.

    send      sending a message                        attend    the kernel calls of a rectangle
    receive   receiving a message                      merge     adding the results of an attend
    arrive    adding received sums

The `number` of an event is the index of its row among all rows of the step's moves or attends.
Times are seconds of `time.perf_counter`, which all processes of a machine share.
"""

from typing import Literal

from ringloom.planner.ir import Plan

Kind = Literal["attend", "merge", "send", "receive", "arrive"]
Events = dict[tuple[Kind, int, int, int], tuple[float, float]]  # kind, rank, step, number: seconds
Recorded = tuple[Plan, Events]  # a pass and its events
