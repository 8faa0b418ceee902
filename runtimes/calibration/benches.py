"""The protocol of a bench: it makes a kernel call, merge, copy or product, and times it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from planner.ir import Pass


@dataclass(frozen=True, slots=True)
class Sample:
    """A kind of kernel call: `kind` is full, causal or masked; `pass_` forward or backward."""

    pass_: Pass
    rows: int
    columns: int
    kind: str
    heads: int
    head_dim: int
    kv_heads: int = 0  # 0: as many as heads


class Bench(Protocol):
    """Runs and times operations; dtypes by name, sizes in elements unless said."""

    name: str
    kind: str  # cuda, cpu or numpy
    dtype: str  # of the inputs of timed kernel calls
    kinds: tuple[str, ...]  # of kernel calls that it has
    libraries: str
    ranks: int  # that share this machine
    capacity: float  # bytes of memory of one rank

    def prepare(self, sample: Sample, dtype: str) -> Callable[[], object]:
        """Returns a function that makes such a call once."""
        ...

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        """Returns a function that merges a partial output into another, as programs do."""
        ...

    def copying(self, size: int) -> Callable[[], object]:
        """Returns a function that copies `size` bytes."""
        ...

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        """Returns a function that multiplies two square matrices."""
        ...

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Returns the seconds that `times` calls in a row take."""
        ...


def memory_bytes() -> float:
    """Returns the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
