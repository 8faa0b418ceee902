"""Window: sliding-window attention."""

from dataclasses import dataclass

from ringloom.planner.given import require_integer
from ringloom.planner.masks.areas import LIMIT
from ringloom.planner.masks.mask import Mask, Packed
from ringloom.planner.masks.plain import Full
from ringloom.planner.masks.regions import FAR


@dataclass(frozen=True, repr=False)
class Window(Mask):
    """A query sees the keys from `left` before its position to `right` after it, ends included.

    The convention of flash-attn, with None instead of -1 for unbounded. Raises PlanError for
    negative widths.
    """

    forms = ("window:4096", "window:128,128")

    left: int | None
    right: int | None = 0

    def __post_init__(self) -> None:
        for side, width in (("left", self.left), ("right", self.right)):
            if width is not None:
                number = require_integer(f"Window {side}", width)
                object.__setattr__(self, side, number if number < LIMIT else None)

    @property
    def expression(self) -> str:
        sides = []
        if self.left is not None:
            sides.append(f"i - {self.left} <= j" if self.left else "i <= j")
        if self.right is not None:
            sides.append(f"j <= i + {self.right}" if self.right else "j <= i")
        if len(sides) == 2:
            return f"({sides[0]}) & ({sides[1]})"
        return sides[0] if sides else Full.definition

    @property
    def reach(self) -> tuple[int, int]:
        """The number of keys before and after a query; FAR means unbounded."""
        left, right = (FAR if side is None else side for side in (self.left, self.right))
        return left, right

    def packed(self) -> Packed:
        return Packed(None, *self.reach)
