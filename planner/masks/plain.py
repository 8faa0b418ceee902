"""Full and Causal: the masks that name no position."""

from dataclasses import dataclass

from planner.masks.mask import ALL, Mask, Packed
from planner.masks.regions import FAR, Region


@dataclass(frozen=True, repr=False)
class Full(Mask):
    """Every query meets every key."""

    forms = ("full",)
    fixed_length = False
    definition = "i * 0 == j * 0"

    def region(self) -> Region:
        return Region.of([(*ALL, *ALL, *ALL)])

    def packed(self) -> Packed:
        return Packed()


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """A query meets the keys up to its own position."""

    forms = ("causal",)
    fixed_length = False
    definition = "j <= i"

    def region(self) -> Region:
        return Region.of([(*ALL, *ALL, -FAR, 0)])

    def packed(self) -> Packed:
        return Packed(right=0)
