"""The table of schedules: a new one is one file beside this and one row here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from planner.errors import PlanError
from planner.ir import Plan
from planner.schedules.balanced import balanced
from planner.schedules.burst import burst
from planner.schedules.gather import allgather
from planner.schedules.ring import ring
from planner.schedules.usp import usp


@dataclass(frozen=True)
class Schedule:
    """A named recipe: `build(work, ranks, pass_, **parameters)` ignores the mask."""

    name: str
    build: Callable[..., Plan]
    travels: str
    path: str
    paper: str

    @property
    def parameters(self) -> dict[str, int | str]:
        """Keyword parameters with their defaults."""
        found = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}

    def check(self, given: dict[str, int | str]) -> None:
        """Raise PlanError for a parameter that this schedule does not have, or of a wrong type."""
        known = self.parameters
        for name, value in given.items():
            if name not in known:
                have = ", ".join(known) or "none"
                raise PlanError(f"{self.name} has no parameter {name!r}; its parameters: {have}")
            if type(value) is not type(known[name]):
                kind = "a whole number" if isinstance(known[name], int) else "a word"
                raise PlanError(f"{self.name}:{name} takes {kind}, not {value!r}")


striped, zigzag = partial(ring, layout="striped"), partial(ring, layout="zigzag")
ulysses = partial(usp, ring=1, layout="contiguous")

ROWS = (
    Schedule("ring", ring, "KV", "one ring", "Ring Attention (Liu et al. 2023)"),
    Schedule("striped", striped, "KV", "one ring", "Striped Attention (Brandon et al. 2023)"),
    Schedule("zigzag", zigzag, "KV", "one ring", "head-tail layout, common practice"),
    Schedule("balanced", balanced, "KV, Q, OUT", "helpers", "DistFlashAttn (Li et al. 2023)"),
    Schedule("burst", burst, "KV; backward Q", "one ring", "BurstAttention (Sun et al. 2024)"),
    Schedule("allgather", allgather, "KV", "all-gather", "common practice"),
    Schedule("ulysses", ulysses, "heads", "all-to-all", "DeepSpeed-Ulysses (Jacobs et al. 2023)"),
    Schedule("usp", usp, "heads, KV", "all-to-all, ring of groups", "USP (Fang and Zhao 2024)"),
)
SCHEDULES = {row.name: row for row in ROWS}
