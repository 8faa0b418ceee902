"""Full and Causal: the masks that name no position."""

from dataclasses import dataclass

from ringloom.planner.masks.mask import Mask, Packed


@dataclass(frozen=True, repr=False)
class Full(Mask):
    """Every query meets every key."""

    forms = ("full",)
    fixed_length = False
    definition = "i * 0 == j * 0"

    def packed(self) -> Packed:
        return Packed()


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """A query meets the keys up to its own position."""

    forms = ("causal",)
    fixed_length = False
    definition = "j <= i"

    def packed(self) -> Packed:
        return Packed(right=0)
