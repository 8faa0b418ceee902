"""Records: rows of one step that are alike but for the rank, and perhaps their slices."""

from dataclasses import dataclass

from planner.ir import TENSORS
from planner.loops.form import Ints
from planner.loops.places import Bools, Slices
from planner.loops.transfers import Way

Ref = tuple[str, int]  # the side or the tensor of sums, and the number of a value of it
Key = tuple[str, str, tuple[str, ...]]  # what it does, the name it makes, tensors


@dataclass(frozen=True, slots=True)
class Cut:
    """A value and the slices of it: ends [n or 1, 4], whole [n or 1, 2]."""

    ref: Ref
    ends: Ints
    whole: Bools


@dataclass(frozen=True, slots=True)
class Record:
    """What `rank` [n] does in step t with some values.

    `way` leads to the receivers `dst`; `into` is what they add sums to.
    """

    t: int
    key: Key
    rank: Ints
    cuts: tuple[Cut, ...]
    queries: int = 0  # how many of the cuts an attend has for queries
    kind: int = 0
    way: Way | None = None
    dst: Ints | None = None
    into: Cut | None = None

    @property
    def sums(self) -> bool:
        """True for messages of accumulators."""
        return bool(self.key[2]) and TENSORS[self.key[2][0]].accumulates


def cuts_of(tag: str, slices: Slices) -> tuple[Cut, ...]:
    """The values that rows read, each with its slices."""
    return tuple(
        Cut((tag, v), slices.ends[:, 4 * i : 4 * i + 4], slices.whole[:, 2 * i : 2 * i + 2])
        for i, v in enumerate(slices.values)
    )


def taken(cut: Cut, rows: Ints) -> Cut:
    """The same for some of the rows."""
    if len(cut.ends) == 1:
        return cut
    return Cut(cut.ref, cut.ends.take(rows, axis=0), cut.whole.take(rows, axis=0))
