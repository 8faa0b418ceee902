"""Compares the bytes that a call sends with ring attention and with the lower bound."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ringloom.auditing.cases import partition_of
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import TENSORS, Pass
from ringloom.planner.planning import plan
from ringloom.runtimes.audit.case import Case
from ringloom.simulator.bounds import least_bytes, reason_outside_class
from ringloom.simulator.facts import traffic_of
from ringloom.views.units import size, times

Bytes = NDArray[np.int64]
SCHEDULE = "ring"  # schedule to compare with, in the layout of the case
EQUAL_SIZES = 0.02  # largest relative difference of messages that count as equal in size
NEGLIGIBLE = 0.001  # smaller fractions of the largest message, such as shape checks, are ignored


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """The bytes that one call sends in one pass.

    `table`: bytes from rank to rank [ranks, ranks]. `ring_bytes`: total bytes of ring attention
    with the same layout, None if it has no plan. `bound`: bytes that every plan must send, None if
    the bound does not apply to the layout. `pattern`: the communication pattern in words.
    """

    pass_: str
    table: Bytes
    ring_bytes: int | None
    bound: int | None
    pattern: str

    @property
    def total(self) -> int:
        """Returns the total bytes of all messages."""
        return int(self.table.sum())

    @property
    def busiest(self) -> int:
        """Returns the bytes that the busiest rank sends."""
        return int(self.table.sum(axis=1).max(initial=0))

    @property
    def ratio(self) -> float | None:
        """Returns the ratio of bytes to ring attention with the same layout; None if unknown."""
        return self.total / self.ring_bytes if self.ring_bytes else None

    @property
    def bound_ratio(self) -> float | None:
        """Returns the ratio of bytes to the lower bound; None if unknown."""
        return self.total / self.bound if self.bound else None

    @property
    def sentence(self) -> str:
        """Returns the result in words: 2.00x the bytes of ring; all-gather by shape."""
        ratios = [f"{times(self.ratio)} the bytes of {SCHEDULE}"] if self.ratio else []
        if self.bound_ratio:
            ratios.append(f"{times(self.bound_ratio)} the lower bound")
        busiest = f"at most {size(self.busiest)} by one rank"
        return "; ".join([f"{size(self.total)}, {busiest}", *ratios, self.pattern])

    def as_dict(self) -> dict[str, object]:
        """Returns the numbers for JSON."""
        return {
            "pass": self.pass_,
            "bytes": self.total,
            "max_bytes": self.busiest,
            "schedule": SCHEDULE,
            "schedule_bytes": self.ring_bytes,
            "ratio": self.ratio,
            "bound_bytes": self.bound,
            "bound_ratio": self.bound_ratio,
            "shape": self.pattern,
            "table": self.table.tolist(),
        }


def compare_sent(case: Case, tables: dict[str, NDArray[np.generic]]) -> tuple[Sent, ...]:
    """Compares the counted bytes of each pass with ring attention and the lower bound."""
    if case.ranks == 1:
        return ()
    counted = {name: np.asarray(table, np.int64) for name, table in tables.items()}
    return tuple(
        Sent(
            name,
            table,
            *reference_bytes(case, cast(Pass, name)),
            pattern_of(table, shard_bytes(case, name)),
        )
        for name, table in counted.items()
    )


def reference_bytes(case: Case, pass_: Pass) -> tuple[int | None, int | None]:
    """Returns the bytes of ring attention with the layout of a case, and the lower bound.

    The first is None if ring has no such plan, the second if the bound does not apply.
    """
    partition = partition_of(case)
    if partition is None:
        return None, None
    try:
        ring = plan(SCHEDULE, case.work, case.ranks, pass_=pass_, layout=partition)
    except PlanError:
        return None, None
    bound = None if reason_outside_class(ring) else least_bytes(case.work, case.ranks, pass_)
    return int(traffic_of([ring]).sum()), bound


def shard_bytes(case: Case, pass_: str) -> Bytes:
    """Returns the bytes of each rank's keys and values, which an all-gather sends to all ranks."""
    row = TENSORS["KV"].bytes_per_token(case.work, finished=True) * case.work.kv_heads
    tokens = np.array([len(shard) for shard in case.in_slots().kv or ()])
    return tokens * row * (pass_ == "forward")


def pattern_of(table: Bytes, shards: Bytes) -> str:
    """Returns the communication pattern in words; `shards`: bytes of each rank's shard."""
    ranks, table = len(table), np.where(table < NEGLIGIBLE * table.max(initial=0), 0, table)
    src, dst = np.nonzero(table)
    if not len(src):
        return "nothing is sent"
    steps, counts = np.unique((dst - src) % ranks, return_counts=True)
    off_diagonal = table[~np.eye(ranks, dtype=bool)]
    if ranks > 2 and len(steps) == 1 and counts[0] == ranks:
        return "a ring by shape"
    if ranks > 2 and {*steps.tolist()} <= {1, ranks - 1}:
        return "neighbours on a ring by shape"
    is_complete, tolerance = off_diagonal.min() > 0, EQUAL_SIZES * off_diagonal.max()
    if is_complete and ranks == 2:
        return "ranks exchange directly"
    if is_complete and (np.abs(table - shards[:, None])[src, dst] <= tolerance).all():
        return "all-gather by shape"
    if is_complete and np.ptp(off_diagonal) <= tolerance:
        return "all-gather or all-to-all by shape"
    if len({*src.tolist()}) == 1 or len({*dst.tolist()}) == 1:
        return "one rank to the others by shape"
    if is_complete:
        return "every rank to every other, unevenly"
    return f"{len(src)} of {ranks * (ranks - 1)} pairs of ranks communicate"
