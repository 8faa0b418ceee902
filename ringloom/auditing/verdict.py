"""The verdict of an audit, with faults, matrices, work per rank, and bytes sent."""

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.auditing.cases import partition_of
from ringloom.auditing.sent import Sent, compare_sent
from ringloom.planner.errors import PlanError
from ringloom.planner.layouts import names
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.report import Fault, Report
from ringloom.views.units import times

CHUNK = 1024  # number of queries whose pairs are counted at a time


@dataclass(frozen=True, eq=False)
class Audit:
    """The verdict on one attention function; it prints as a page.

    `case`: the wanted attention. `report`: the results of the probes. `name`: the function.
    """

    case: Case
    report: Report
    name: str

    @property
    def exact(self) -> bool:
        """Returns True if the audit ran and found no fault."""
        return self.report.exact

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Returns the faults, each with its first wrong pair."""
        return self.report.faults

    @cached_property
    def located_case(self) -> Case:
        """Returns the case with the given or detected positions."""
        if self.case.has_positions or self.report.layout is None:
            return self.case
        work, q = self.case.work, self.report.layout
        return replace(self.case, q=q, kv=q) if work.seq == work.kv_seq else self.case

    @cached_property
    def layout(self) -> str:
        """Returns all names of the layout; "" if it is unknown."""
        partition = partition_of(self.located_case)
        if partition is None:
            return ""
        try:
            return names(self.case.work, self.case.ranks, partition)
        except PlanError:
            return "custom"

    @cached_property
    def work(self) -> NDArray[np.int64]:
        """Returns the number of pairs of one query head that each rank's queries see: [ranks]."""
        work, keys = self.case.work, np.arange(self.case.work.kv_seq)
        totals = [0] * self.case.ranks
        for rank, shard in enumerate(self.located_case.q or ()):
            queries = shard[shard >= 0]
            for start in range(0, len(queries), CHUNK):
                totals[rank] += int(work.allowed(queries[start : start + CHUNK], keys).sum())
        return np.array(totals)

    @property
    def balance(self) -> str:
        """Returns the work of ranks in words; "" if positions are unknown."""
        low, high = int(self.work.min()), int(self.work.max())
        if not high or self.case.ranks == 1:
            return ""
        if low == high:
            return f"{high} pairs per rank and query head: balanced"
        ratio = times(high / self.work.mean())
        return f"{low} to {high} pairs per rank and query head: the busiest has {ratio} the average"

    @cached_property
    def sent(self) -> tuple[Sent, ...]:
        """Returns the bytes of a call by pass; empty if they could not be counted."""
        return compare_sent(self.located_case, self.report.sent)

    def as_dict(self) -> dict[str, Any]:
        """Returns the verdict for JSON; numbers that are not finite become null."""
        work, report = self.case.work, self.report
        return {
            "audited": self.name,
            "exact": self.exact,
            "could_not_run": report.could_not_run,
            "ranks": self.case.ranks,
            "workload": work.python,
            "mask": str(work.mask),
            "dtype": work.dtype,
            "pass": self.case.passes,
            "seed": self.case.seed,
            "layout": self.layout,
            "detected": report.layout is not None,
            "positions": [shard.tolist() for shard in self.located_case.q or ()],
            "work": self.work.tolist(),
            "faults": [{name: _finite(x) for name, x in asdict(f).items()} for f in report.faults],
            "errors": {
                name: {
                    "error": _finite(error.error),
                    "dense": error.unit,
                    "units": _finite(error.units),
                    "allowed": error.tolerance,
                }
                for name, error in report.errors.items()
            },
            "sent": [traffic.as_dict() for traffic in self.sent],
            "invisible": list(report.invisible),
            "calls": report.calls,
            "seconds": report.seconds,
        }

    def html(self, each: str = "") -> str:
        """Returns an HTML page with pictures; `each`: draw one per "rank" or per "head".

        Raises RingloomError without bokeh: pip install 'ringloom[report]'.
        """
        from ringloom.planner.optional import import_optional

        text: str = import_optional("report", "ringloom.auditing.html").page(self, each)
        return text

    def __repr__(self) -> str:
        return f"<Audit of {self.name}: {self.summary}>"

    def __str__(self) -> str:
        from ringloom.auditing.page import text

        return text(self)

    @property
    def summary(self) -> str:
        """Returns the verdict in a few words."""
        if self.report.could_not_run is not None:
            return "could not run"
        if self.exact:
            return "exact"
        return f"NOT exact: {', '.join(dict.fromkeys(fault.kind for fault in self.faults))}"


def _finite(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
