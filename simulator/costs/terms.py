"""Cost terms: functions registered by `term`, each with the constant that it reads.

attend     term(costs, node)     seconds of each row of an attend besides its kernel calls: [rows]
add        term(costs, tensor)   seconds per token and head to add a kernel's result to an
                                 accumulator
merge      term(costs, tensor)   seconds per token and head to merge a received accumulator
exchange   term(costs)           seconds per byte of an all-to-all of heads, including local heads
prologue   term(costs)           seconds of each rank before step 0: [ranks]

`costs` are the `ringloom.simulator.costs.prices.Costs` of one plan on one hardware. The terms of an
event add up.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import TENSORS
from ringloom.planner.workload import DTYPES
from ringloom.simulator.hardware.schema import OPTIONAL, RATIO, SECONDS, Unit

Event = Literal["attend", "add", "merge", "exchange", "prologue"]
Seconds = Callable[..., Any]
TERMS = dict[str, tuple[Event, Seconds]]()  # by name: the event of a term, and its function


def term(
    event: Event, constant: str = "", unit: Unit = SECONDS, default: float = 0.0
) -> Callable[[Seconds], Seconds]:
    """Registers a function as a cost term, and the constant of hardware files that it reads.

    A file may omit the constant; then `default` applies.
    """

    def register(seconds: Seconds) -> Seconds:
        if constant:
            OPTIONAL[constant] = unit, default
        TERMS[seconds.__name__] = event, seconds
        return seconds

    return register


def terms(event: Event) -> list[Seconds]:
    """Returns the terms of an event."""
    return [seconds for kind, seconds in TERMS.values() if kind == event]


@term("prologue")
def row_sums(costs: Any) -> NDArray[np.float64]:
    """Prices the row sums of dO * O before a backward pass by their memory traffic."""
    seconds = np.zeros(costs.plan.ranks)
    if costs.plan.pass_ == "backward":
        traffic = 2 * costs.plan.block_bytes("DOUT") + costs.plan.block_bytes("STATS") // 2
        np.add.at(seconds, costs.plan.partition.q.owners, traffic)
    summed: NDArray[np.float64] = seconds / costs.hardware["memory.bandwidth"]
    return summed


@term("exchange")
def pack(costs: Any) -> float:
    """Prices packing and unpacking, which each read and write all bytes."""
    seconds: float = 4 / costs.hardware["memory.bandwidth"]
    return seconds


@term("add")
def add_result(costs: Any, tensor: str) -> float:
    """Prices reading a partial result, and reading and writing the accumulator."""
    work, kind = costs.plan.workload, TENSORS[tensor]
    narrow = kind.elements(work) * DTYPES[work.dtype]
    narrow += kind.scalars * max(4, DTYPES[work.dtype])
    return _traffic(costs, tensor, work.batch * narrow)


@term("merge", "attention.merge", RATIO, default=1.0)
def merge_arrival(costs: Any, tensor: str) -> float:
    """Prices a merge by its memory traffic, relative to a fused kernel."""
    return _traffic(costs, tensor, TENSORS[tensor].bytes_per_token(costs.plan.workload))


def _traffic(costs: Any, tensor: str, read: int) -> float:
    """Returns the seconds to read `read` bytes and an accumulator, and to write the accumulator.

    Without a fused kernel, this takes `attention.merge` times as long.
    """
    size = TENSORS[tensor].bytes_per_token(costs.plan.workload)
    factor = costs.hardware.option("attention.merge")
    seconds: float = factor * (2 * size + read) / costs.hardware["memory.bandwidth"]
    return seconds
