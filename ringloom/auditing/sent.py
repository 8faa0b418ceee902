"""Bytes that a call sends, beside those of ring attention with the same layout."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.ir import Pass
from planner.planning import plan
from ringloom.auditing.cases import partition_of
from ringloom.views.units import size, times
from runtimes.audit.case import Case
from simulator.facts import traffic_of

Bytes = NDArray[np.int64]
SCHEDULE = "ring"  # whose bytes others are measured by, with the layout of the case
EVEN = 0.02  # share by which messages of one size may differ


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """Bytes of one call in one pass, from rank to rank: [ranks, ranks].

    `planned`: bytes of ring attention with the same layout, all messages together; None where
    there is no such plan. `shape`: what the messages look like.
    """

    pass_: str
    table: Bytes
    planned: int | None
    shape: str

    @property
    def total(self) -> int:
        """Bytes of all messages."""
        return int(self.table.sum())

    @property
    def busiest(self) -> int:
        """Bytes that the busiest rank sends."""
        return int(self.table.sum(axis=1).max(initial=0))

    @property
    def ratio(self) -> float | None:
        """Bytes over those of ring attention with the same layout; None without any."""
        return self.total / self.planned if self.planned else None

    @property
    def sentence(self) -> str:
        """The finding in words: 2.00x the bytes of ring; all-gather by shape."""
        beside = f"{times(self.ratio)} the bytes of {SCHEDULE}; " if self.ratio else ""
        return f"{size(self.busiest)} by the busiest rank; {beside}{self.shape}"

    def as_dict(self) -> dict[str, object]:
        """The numbers for JSON."""
        return {
            "pass": self.pass_,
            "bytes": self.total,
            "max_bytes": self.busiest,
            "schedule": SCHEDULE,
            "schedule_bytes": self.planned,
            "ratio": self.ratio,
            "shape": self.shape,
            "table": self.table.tolist(),
        }


def sent(case: Case, tables: dict[str, NDArray[np.generic]]) -> tuple[Sent, ...]:
    """Returns what was counted, by pass, beside the plan of ring attention."""
    return tuple(
        Sent(pass_, table := np.asarray(counted, np.int64), planned(case, pass_), shape(table))
        for pass_, counted in tables.items()
        if case.ranks > 1
    )


def planned(case: Case, pass_: str) -> int | None:
    """Returns the bytes that ring attention sends with a case's layout, None without a plan."""
    partition = partition_of(case)
    if partition is None:
        return None
    try:
        whole = plan(SCHEDULE, case.work, case.ranks, pass_=cast(Pass, pass_), layout=partition)
    except PlanError:
        return None
    return int(traffic_of([whole]).sum())


def shape(table: Bytes) -> str:
    """Names the pattern of messages from rank to rank."""
    ranks = len(table)
    src, dst = np.nonzero(table)
    if not len(src):
        return "nothing is sent"
    steps, counts = np.unique((dst - src) % ranks, return_counts=True)
    apart = table[~np.eye(ranks, dtype=bool)]
    if ranks > 2 and len(steps) == 1 and counts[0] == ranks:
        return "a ring by shape"
    if ranks > 2 and {*steps.tolist()} <= {1, ranks - 1}:
        return "neighbours on a ring by shape"
    if apart.min() > 0 and np.ptp(apart) <= EVEN * apart.max():
        return "ranks exchange directly" if ranks == 2 else "all-gather or all-to-all by shape"
    if len({*src.tolist()}) == 1 or len({*dst.tolist()}) == 1:
        return "one rank to the others by shape"
    return f"{len(src)} of {ranks * (ranks - 1)} pairs of ranks"
