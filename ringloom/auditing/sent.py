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
from ringloom.simulator.bounds import least_bytes, outside
from ringloom.simulator.facts import traffic_of
from ringloom.views.units import size, times

Bytes = NDArray[np.int64]
SCHEDULE = "ring"  # schedule to compare with, in the layout of the case
EVEN = 0.02  # relative difference up to which messages count as equal in size
FEW = 0.001  # messages below this fraction of the largest, such as shape checks, are ignored


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """Bytes of one call in one pass, from rank to rank: [ranks, ranks].

    `planned`: total bytes of ring attention with the same layout, None if it has no plan. `bound`:
    bytes that every plan must send, None if the bound does not apply to the layout. `shape`: the
    communication pattern in words.
    """

    pass_: str
    table: Bytes
    planned: int | None
    bound: int | None
    shape: str

    @property
    def total(self) -> int:
        """Returns the bytes of all messages."""
        return int(self.table.sum())

    @property
    def busiest(self) -> int:
        """Returns the bytes that the busiest rank sends."""
        return int(self.table.sum(axis=1).max(initial=0))

    @property
    def ratio(self) -> float | None:
        """Returns bytes relative to ring attention with the same layout; None if unknown."""
        return self.total / self.planned if self.planned else None

    @property
    def over_bound(self) -> float | None:
        """Returns bytes relative to the lower bound; None if unknown."""
        return self.total / self.bound if self.bound else None

    @property
    def sentence(self) -> str:
        """Returns the finding in words: 2.00x the bytes of ring; all-gather by shape."""
        beside = [f"{times(self.ratio)} the bytes of {SCHEDULE}"] if self.ratio else []
        if self.over_bound:
            beside.append(f"{times(self.over_bound)} the lower bound")
        busiest = f"at most {size(self.busiest)} by a rank"
        return "; ".join([f"{size(self.total)}, {busiest}", *beside, self.shape])

    def as_dict(self) -> dict[str, object]:
        """Returns the numbers for JSON."""
        return {
            "pass": self.pass_,
            "bytes": self.total,
            "max_bytes": self.busiest,
            "schedule": SCHEDULE,
            "schedule_bytes": self.planned,
            "ratio": self.ratio,
            "bound_bytes": self.bound,
            "bound_ratio": self.over_bound,
            "shape": self.shape,
            "table": self.table.tolist(),
        }


def sent(case: Case, tables: dict[str, NDArray[np.generic]]) -> tuple[Sent, ...]:
    """Compares counted bytes of each pass with ring attention and the lower bound."""
    counted = {name: np.asarray(table, np.int64) for name, table in tables.items()}
    return tuple(
        Sent(name, table, *planned(case, cast(Pass, name)), shape(table, shard_bytes(case, name)))
        for name, table in counted.items()
        if case.ranks > 1
    )


def planned(case: Case, pass_: Pass) -> tuple[int | None, int | None]:
    """Returns the bytes of ring attention with a case's layout, and the lower bound.

    Each is None if there is no such plan, or if the bound does not apply to the layout.
    """
    partition = partition_of(case)
    if partition is None:
        return None, None
    try:
        ring = plan(SCHEDULE, case.work, case.ranks, pass_=pass_, layout=partition)
    except PlanError:
        return None, None
    bound = None if outside(ring) else least_bytes(case.work, case.ranks, pass_)
    return int(traffic_of([ring]).sum()), bound


def shard_bytes(case: Case, pass_: str) -> Bytes:
    """Returns the bytes of each rank's keys and values, which an all-gather sends to each rank."""
    row = TENSORS["KV"].bytes_per_token(case.work, finished=True) * case.work.kv_heads
    tokens = np.array([len(shard) for shard in case.in_slots().kv or ()])
    return tokens * row * (pass_ == "forward")


def shape(table: Bytes, shards: Bytes) -> str:
    """Names the communication pattern; `shards`: bytes of each rank's keys and values."""
    ranks, table = len(table), np.where(table < FEW * table.max(initial=0), 0, table)
    src, dst = np.nonzero(table)
    if not len(src):
        return "nothing is sent"
    steps, counts = np.unique((dst - src) % ranks, return_counts=True)
    apart = table[~np.eye(ranks, dtype=bool)]
    if ranks > 2 and len(steps) == 1 and counts[0] == ranks:
        return "a ring by shape"
    if ranks > 2 and {*steps.tolist()} <= {1, ranks - 1}:
        return "neighbours on a ring by shape"
    if apart.min() > 0 and ranks == 2:
        return "ranks exchange directly"
    if apart.min() > 0 and (np.abs(table - shards[:, None])[src, dst] <= EVEN * apart.max()).all():
        return "all-gather by shape"
    if apart.min() > 0 and np.ptp(apart) <= EVEN * apart.max():
        return "all-gather or all-to-all by shape"
    if len({*src.tolist()}) == 1 or len({*dst.tolist()}) == 1:
        return "one rank to the others by shape"
    if apart.min() > 0:
        return "every rank to every other, unevenly"
    return f"{len(src)} of {ranks * (ranks - 1)} pairs of ranks"
