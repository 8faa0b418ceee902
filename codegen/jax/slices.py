"""Pieces of a value as slices of its tokens."""

from dataclasses import dataclass, field

from codegen.jax.cases import Case, Slice
from planner.errors import PlanError

HALVES = {(0, 1): "front", (1, 2): "back"}


@dataclass
class Slices:
    """Slices that a pass uses: their names and what they are parts of."""

    widths: dict[tuple[str, str], int]
    used: set[str] = field(default_factory=set)

    def of(self, case: Case) -> tuple[str | None, str | None, bool]:
        """Rows and columns as text, None for all of them, and whether the mask is causal."""
        rows, cols = self.text(case.rows), self.text(case.cols)
        if case.kind == "strict":
            if rows or cols:
                raise PlanError("pieces under a mask that leaves out the diagonal")
            return "slice(1, None)", "slice(0, -1)", True
        if case.kind not in ("full", "causal"):
            raise PlanError(f"rectangles of kind {case.kind}")
        return rows, cols, case.kind == "causal"

    def text(self, part: Slice) -> str | None:
        """A slice of the tokens, in halves where it is one."""
        first, last, of = part
        if (first, last) == (0, of - 1):
            return None
        if of % 2 == 0 and first * 2 % of == 0 and (last + 1) * 2 % of == 0:
            name = HALVES[first * 2 // of, (last + 1) * 2 // of]
            self.used.add(name)
            return name
        raise PlanError(f"pieces {first} to {last} of {of}")
