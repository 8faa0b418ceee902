"""Chunks and BlockCausal: masks on chunks of equal length."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.masks.mask import Mask, Packed
from ringloom.planner.masks.regions import FAR, MOST, Ints, Region


@dataclass(frozen=True, repr=False)
class Chunked(Mask):
    """A rule on chunks of `size` positions, starting at position 0.

    The workload sets `tokens`, the number of positions. Raises PlanError for sizes below 1.
    """

    least = 1

    size: int
    tokens: int | None = field(default=None, init=False)

    def up_to(self, tokens: int) -> Chunked:
        if (chunks := -(-tokens // self.size)) > MOST:
            raise PlanError(f"{self} cuts {tokens} tokens into {chunks} chunks, more than {MOST}")
        bounded = type(self)(self.size)
        object.__setattr__(bounded, "tokens", tokens)
        return bounded

    def bounds(self) -> tuple[Ints, Ints]:
        """Returns the start and the end of each chunk: int64 [chunks] each."""
        if self.tokens is None:
            raise PlanError(
                f"{self} has no length: use the mask in a workload, or call up_to(tokens)"
            )
        begins = np.arange(0, self.tokens, self.size)
        return begins, begins + self.size


@dataclass(frozen=True, repr=False)
class Chunks(Chunked):
    """A query sees the keys of its own chunk; with Causal, the chunked attention of Llama 4."""

    forms = ("chunks:8192",)
    definition = "i // {size} == j // {size}"

    def packed(self) -> Packed:
        bounds = np.append(self.bounds()[0], [self.tokens])
        return Packed((bounds, bounds))


@dataclass(frozen=True, repr=False)
class BlockCausal(Chunked):
    """A query sees the keys of its own chunk and of all earlier chunks."""

    forms = ("block-causal:512",)
    definition = "j // {size} <= i // {size}"

    def region(self) -> Region:
        begins, ends = self.bounds()
        return Region.boxes(begins, ends, -FAR, ends)
