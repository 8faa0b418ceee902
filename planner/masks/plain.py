"""Full and Causal: the masks without parameters."""

from dataclasses import dataclass

from ringloom.planner.masks.mask import Mask, Packed


@dataclass(frozen=True, repr=False)
class Full(Mask):
    """Every query sees every key."""

    forms = ("full",)
    fixed_length = False
    definition = "i * 0 == j * 0"

    def packed(self) -> Packed:
        return Packed()


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """A query sees the keys up to its own position."""

    forms = ("causal",)
    fixed_length = False
    definition = "j <= i"

    def packed(self) -> Packed:
        return Packed(right=0)
