"""Pieces of a value as slices of its tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from codegen.jax.cases import Case, Slice
from planner.errors import PlanError

HALVES = {(0, 1): "front", (1, 2): "back"}


@dataclass
class Slices:
    """The slices that a pass uses, by the names of variables that they are made of.

    `sizes`: tokens of a piece of the query side and of the key side; prefixes tell the sides apart
    where the sizes differ.
    """

    sizes: tuple[int, int]
    defined: set[str] = field(default_factory=set)

    def of(self, case: Case) -> tuple[str | None, str | None, bool]:
        """Rows and columns as text, None for all of them, and whether the mask is causal."""
        rows, cols = (self.text(s, side) for s, side in ((case.rows, "q"), (case.cols, "kv")))
        if case.kind == "strict":
            if rows or cols:
                raise PlanError("some pieces under a mask that leaves out the diagonal")
            return "slice(1, None)", "slice(0, -1)", True
        return rows, cols, case.kind == "causal"

    def text(self, part: Slice, side: str) -> str | None:
        """A slice of the tokens, in halves where it is one; None for all."""
        first, last, of = part
        if (first, last) == (0, of - 1):
            return None
        mark = self.mark(side)
        if of % 2 == 0 and first * 2 % of == 0 and (last + 1) * 2 % of == 0:
            return mark + HALVES[first * 2 // of, (last + 1) * 2 // of]
        size = f"{mark}piece"
        ends = [
            str(n) if n == 0 else size if n == 1 else f"{n} * {size}" for n in (first, last + 1)
        ]
        return f"slice({', '.join(ends)})"

    def mark(self, side: str) -> str:
        return "kv_" if side == "kv" and self.sizes[0] != self.sizes[1] else ""

    def definitions(self, case: Case, q: str, kv: str) -> Iterator[tuple[str, str]]:
        """Names that a case needs and that are not there yet, each with its value."""
        for part, side, array in ((case.rows, "q", q), (case.cols, "kv", kv)):
            text, mark = self.text(part, side), self.mark(side)
            tokens = f"{array}.shape[2]"
            if text and text.removeprefix("kv_") in HALVES.values():
                half = f"{mark}half"
                if half not in self.defined:
                    self.defined.add(half)
                    yield half, f"{tokens} // 2"
                    yield f"{mark}front, {mark}back", f"slice(0, {half}), slice({half}, None)"
            elif text and f"{mark}piece" not in self.defined:
                self.defined.add(f"{mark}piece")
                yield f"{mark}piece", f"{tokens} // {part[2]}"
