"""Chunks and BlockCausal: masks by chunks of equal length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import PlanError
from planner.masks.mask import Mask, Packed
from planner.masks.regions import FAR, Ints, Region


@dataclass(frozen=True, repr=False)
class Chunked(Mask):
    """A rule on chunks of `size` positions, counted from position 0.

    `tokens` is where the positions end; a workload fills in its own. Raises PlanError for sizes
    below 1.
    """

    least = 1

    size: int
    tokens: int | None = None

    def up_to(self, tokens: int) -> Chunked:
        return replace(self, tokens=tokens)

    def bounds(self) -> tuple[Ints, Ints]:
        """Returns where chunks begin and end: int64 [chunks] each."""
        if self.tokens is None:
            raise PlanError(f"{self} has no end: give it the tokens, or use it in a workload")
        begins = np.arange(0, self.tokens, self.size)
        return begins, begins + self.size


@dataclass(frozen=True, repr=False)
class Chunks(Chunked):
    """A query meets the keys of its own chunk; with Causal, the chunked attention of Llama 4."""

    forms = ("chunks:8192",)
    definition = "i // {size} == j // {size}"

    def packed(self) -> Packed:
        bounds = np.append(self.bounds()[0], [self.tokens])
        return Packed((bounds, bounds))


@dataclass(frozen=True, repr=False)
class BlockCausal(Chunked):
    """A query meets the keys of its own chunk and of all chunks before it."""

    forms = ("block-causal:512",)
    definition = "j // {size} <= i // {size}"

    def region(self) -> Region:
        begins, ends = self.bounds()
        return Region.boxes(begins, ends, -FAR, ends)
