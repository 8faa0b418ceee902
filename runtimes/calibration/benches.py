"""What a bench is: something that makes one kernel call, merge, copy or product, and times it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """A kind of kernel call: `kind` is full, causal or masked; `pass_` forward or backward."""

    pass_: str
    rows: int
    columns: int
    kind: str
    heads: int
    head_dim: int
    kv_heads: int = 0  # 0: as many as heads


class Bench(Protocol):
    """Something that runs what is timed; dtypes by name, sizes in elements unless said."""

    name: str
    kind: str  # cuda, cpu or numpy
    dtype: str  # of the inputs of timed kernel calls
    kinds: tuple[str, ...]  # of kernel calls that it has
    libraries: str
    ranks: int  # that share this machine
    capacity: float  # bytes of memory of one rank

    def prepare(self, sample: Sample, dtype: str) -> Callable[[], object]:
        """A function that makes such a call once."""
        ...

    def merging(self, rows: int, heads: int, head_dim: int) -> Callable[[], object]:
        """A function that merges a partial output into another, as emitted programs do."""
        ...

    def copying(self, size: int) -> Callable[[], object]:
        """A function that copies some bytes."""
        ...

    def multiplying(self, size: int, dtype: str) -> Callable[[], object]:
        """A function that multiplies two square matrices."""
        ...

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Seconds that so many calls in a row take."""
        ...
