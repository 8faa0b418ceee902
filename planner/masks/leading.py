"""Prefix and Global: masks that treat the first tokens apart."""

from dataclasses import dataclass

from planner.masks.mask import ALL, Mask
from planner.masks.regions import FAR, Region


@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """A query meets the first `n` keys and, beyond them, the keys up to its own position."""

    forms = ("prefix:N",)
    from_zero = True
    definition = "(j < {n}) | (j <= i)"

    n: int

    def region(self) -> Region:
        return Region.of([(0, FAR, -FAR, self.n, *ALL), (0, FAR, self.n, FAR, -FAR, 0)])


@dataclass(frozen=True, repr=False)
class Global(Mask):
    """The first `n` queries meet every key and every query meets the first `n` keys."""

    forms = ("global:N",)
    from_zero = True
    definition = "(i < {n}) | (j < {n})"

    n: int

    def region(self) -> Region:
        return Region.of([(0, self.n, *ALL, *ALL), (self.n, FAR, -FAR, self.n, *ALL)])
