"""Masks: which query i may attend to which key j.

    mask ::= Full()                           every pair
           | Causal()                         j <= i
           | Window(left, right=0)            i - left <= j <= i + right      (None: unbounded)
           | Prefix(n)                        j < n or j <= i
           | Documents(lengths, q_lengths)    i and j in the same document
           | Global(n)                        i < n or j < n
           | Blocks(grid, size)               grid[i // size][j // size]
           | mask & mask | mask | mask        both; either

Query positions are aligned, i + kv_seq - seq, so the last query meets the last key. A query before
position 0 sees only what Full and Window give it, and its document where `q_lengths` names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import ClassVar, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import PlanError
from planner.masks.areas import LIMIT, Ranges, areas
from planner.masks.regions import FAR, Ints, Region, rectangles

Positions = range | Sequence[int] | NDArray[np.integer]
Allowed = NDArray[np.bool_]
Kind = Literal["empty", "full", "partial"]
ALL = (-FAR, FAR)


class Mask(ABC):
    """Which pairs of query and key positions are allowed."""

    __slots__ = ()

    @abstractmethod
    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        """The mask by its definition, for aligned query and key positions; [len(q), len(kv)]."""

    @abstractmethod
    def region(self) -> Region:
        """The same pairs as a disjoint union of boxes cut by bands."""

    def check(self, seq: int, kv_seq: int) -> None:  # noqa: B027 - most masks fit any length
        """Raises PlanError when the mask does not fit `seq` queries and `kv_seq` keys."""

    def pairs(self, q: Ranges, kv: Ranges) -> int:
        """The exact number of allowed pairs between two sets of positions."""
        return int(areas(region_of(self), [q], [kv])[0, 0])

    def kind(self, q: Ranges, kv: Ranges) -> Kind:
        """Whether no pair, every pair or some pairs of the two sets are allowed."""
        count = self.pairs(q, kv)
        whole = sum(map(len, q)) * sum(map(len, kv))
        return "empty" if not count else "full" if count == whole else "partial"

    def __and__(self, other: Mask) -> And:
        return And(self, other)

    def __or__(self, other: Mask) -> Or:
        return Or(self, other)

    def __str__(self) -> str:
        """The command-line spelling."""
        return type(self).__name__.lower()

    def __repr__(self) -> str:
        """Python that builds the mask."""
        return f"{type(self).__name__}()"


@lru_cache(maxsize=8)
def region_of(mask: Mask) -> Region:
    """The region of a mask, remembered."""
    return mask.region()


@dataclass(frozen=True, slots=True, repr=False)
class Full(Mask):
    """Every query meets every key."""

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        return np.ones((len(q), len(kv)), np.bool_)

    def region(self) -> Region:
        return Region.of([(*ALL, *ALL, *ALL)])


@dataclass(frozen=True, slots=True, repr=False)
class Causal(Mask):
    """A query meets the keys up to its own position."""

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        return _distance(q, kv) <= 0

    def region(self) -> Region:
        return Region.of([(*ALL, *ALL, -FAR, 0)])


@dataclass(frozen=True, slots=True, repr=False)
class Window(Mask):
    """A query meets `left` keys before its position and `right` after it, ends included.

    None is unbounded on that side, as in flash-attn. Raises PlanError for negative widths.
    """

    left: int | None
    right: int | None = 0

    def __post_init__(self) -> None:
        for side in ("left", "right"):
            value = getattr(self, side)
            if value is not None:
                object.__setattr__(self, side, _whole(f"Window {side}", value))

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        distance = _distance(q, kv)
        near = np.ones(distance.shape, np.bool_)
        if self.left is not None:
            near &= distance >= -self.left
        if self.right is not None:
            near &= distance <= self.right
        return near

    def region(self) -> Region:
        left, right = (FAR if side is None else min(side, FAR) for side in (self.left, self.right))
        return Region.of([(*ALL, *ALL, -left, right)])

    def __str__(self) -> str:
        left, right = ("inf" if side is None else str(side) for side in (self.left, self.right))
        return f"window:{left}" if self.right == 0 else f"window:{left},{right}"

    def __repr__(self) -> str:
        return f"Window({self.left})" if self.right == 0 else f"Window({self.left}, {self.right})"


@dataclass(frozen=True, slots=True, repr=False)
class Leading(Mask):
    """A mask that treats the first `n` tokens apart."""

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _whole(type(self).__name__, self.n))

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}:{self.n}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n})"


@dataclass(frozen=True, slots=True, repr=False)
class Prefix(Leading):
    """A query meets the first `n` keys and, beyond them, the keys up to its own position."""

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        i, j = _column(q), _row(kv)
        return np.asarray((i >= 0) & ((j < self.n) | (j <= i)))

    def region(self) -> Region:
        n = min(self.n, FAR)
        return Region.of([(0, FAR, -FAR, n, *ALL), (0, FAR, n, FAR, -FAR, 0)])


@dataclass(frozen=True, slots=True, repr=False)
class Documents(Mask):
    """A query meets the keys of its own document.

    `lengths` are the documents' keys. Without `q_lengths` a query belongs to the document of its
    aligned position; with them, query number r belongs to the document that r falls in when the
    queries are dealt out by `q_lengths`. Raises PlanError for negative or mismatched lengths.
    """

    lengths: tuple[int, ...]
    q_lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _lengths("Documents", self.lengths))
        if self.q_lengths is not None:
            object.__setattr__(self, "q_lengths", _lengths("Documents queries", self.q_lengths))
            if len(self.q_lengths) != len(self.lengths):
                raise PlanError(
                    f"Documents has {len(self.lengths)} lengths but {len(self.q_lengths)} q_lengths"
                )

    def bounds(self) -> tuple[Ints, Ints]:
        """Where documents begin and end, in aligned query positions and in keys; [n + 1] each."""
        keys = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        if self.q_lengths is None:
            return keys, keys
        queries = np.concatenate([[0], np.cumsum(self.q_lengths, dtype=np.int64)])
        return queries + keys[-1] - queries[-1], keys

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        q_bounds, kv_bounds = self.bounds()
        i, j = _place(q_bounds, _column(q)), _place(kv_bounds, _row(kv))
        return np.asarray((i == j) & (i >= 0))

    def region(self) -> Region:
        q, kv = self.bounds()
        far = np.full(len(self.lengths), FAR)
        return Region.of(np.stack([q[:-1], q[1:], kv[:-1], kv[1:], -far, far], axis=1))

    def check(self, seq: int, kv_seq: int) -> None:
        if sum(self.lengths) != kv_seq:
            raise PlanError(f"documents sum to {sum(self.lengths)} tokens, not to kv_seq {kv_seq}")
        if self.q_lengths is not None and sum(self.q_lengths) != seq:
            raise PlanError(f"q_lengths sum to {sum(self.q_lengths)} tokens, not to seq {seq}")

    def __str__(self) -> str:
        sides = (self.lengths,) if self.q_lengths is None else (self.lengths, self.q_lengths)
        return "documents:" + "/".join(",".join(map(str, side)) for side in sides)

    def __repr__(self) -> str:
        queries = "" if self.q_lengths is None else f", {self.q_lengths!r}"
        return f"Documents({self.lengths!r}{queries})"


@dataclass(frozen=True, slots=True, repr=False)
class Global(Leading):
    """The first `n` queries meet every key and every query meets the first `n` keys."""

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        i, j = _column(q), _row(kv)
        return np.asarray((i >= 0) & ((i < self.n) | (j < self.n)))

    def region(self) -> Region:
        n = min(self.n, FAR)
        return Region.of([(0, n, *ALL, *ALL), (n, FAR, -FAR, n, *ALL)])


@dataclass(frozen=True, slots=True, repr=False)
class Blocks(Mask):
    """A query meets the keys of the cells that its row of the grid marks; cells are size x size.

    Any two-dimensional sequence or array of booleans or 0/1 is taken as a grid. What lies outside
    it sees nothing and is not seen. Raises PlanError for anything else.
    """

    grid: tuple[tuple[bool, ...], ...]
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _whole("Blocks size", self.size, least=1))
        rows = tuple(map(tuple, _grid(self.grid).tolist()))
        object.__setattr__(self, "grid", rows)

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        cells = np.array(self.grid)
        size = min(self.size, LIMIT)
        i, j = _column(q) // size, _row(kv) // size
        inside = (i >= 0) & (i < cells.shape[0]) & (j >= 0) & (j < cells.shape[1])
        return np.asarray(inside & cells[np.clip(i, 0, len(cells) - 1), j % cells.shape[1]])

    def region(self) -> Region:
        r0, r1, c0, c1 = rectangles(np.array(self.grid)) * min(self.size, FAR)
        far = np.full(len(r0), FAR)
        return Region.of(np.stack([r0, r1, c0, c1, -far, far], axis=1))

    def check(self, seq: int, kv_seq: int) -> None:
        shape = len(self.grid), len(self.grid[0])
        if min(shape) * self.size < kv_seq:
            raise PlanError(
                f"a grid of {shape[0]} x {shape[1]} blocks of {self.size} covers "
                f"{shape[0] * self.size} x {shape[1] * self.size} positions, not {kv_seq}"
            )

    def __str__(self) -> str:
        rows = "/".join("".join("01"[cell] for cell in row) for row in self.grid)
        return f"blocks:{self.size}:{rows}"

    def __repr__(self) -> str:
        return f"Blocks({self.grid!r}, {self.size})"


@dataclass(frozen=True, slots=True, repr=False)
class Pair(Mask):
    """Two masks joined by a sign."""

    left: Mask
    right: Mask
    sign: ClassVar[str]
    binds: ClassVar[int]

    def check(self, seq: int, kv_seq: int) -> None:
        self.left.check(seq, kv_seq)
        self.right.check(seq, kv_seq)

    def __str__(self) -> str:
        return self._spell(str)

    def __repr__(self) -> str:
        return self._spell(repr)

    def _spell(self, leaf: Callable[[Mask], str]) -> str:
        """Both sides, with parentheses only where reading it back would group otherwise."""
        left, right = leaf(self.left), leaf(self.right)
        if isinstance(self.left, Pair) and self.left.binds < self.binds:
            left = f"({left})"
        if isinstance(self.right, Pair) and self.right.binds <= self.binds:
            right = f"({right})"
        return f"{left} {self.sign} {right}"


@dataclass(frozen=True, slots=True, repr=False)
class And(Pair):
    """The pairs that both masks allow."""

    sign = "&"
    binds = 2

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        return self.left.allowed(q, kv) & self.right.allowed(q, kv)

    def region(self) -> Region:
        return self.left.region().intersect(self.right.region())


@dataclass(frozen=True, slots=True, repr=False)
class Or(Pair):
    """The pairs that either mask allows."""

    sign = "|"
    binds = 1

    def allowed(self, q: Positions, kv: Positions) -> Allowed:
        return self.left.allowed(q, kv) | self.right.allowed(q, kv)

    def region(self) -> Region:
        return self.left.region().union(self.right.region())


def _positions(given: Positions) -> Ints:
    if isinstance(given, range):
        return np.arange(given.start, given.stop, given.step, dtype=np.int64)
    return np.asarray(given, np.int64)


def _column(q: Positions) -> Ints:
    return _positions(q)[:, None]


def _row(kv: Positions) -> Ints:
    return _positions(kv)[None, :]


def _distance(q: Positions, kv: Positions) -> Ints:
    """j - i for every pair, [len(q), len(kv)]."""
    return _row(kv) - _column(q)


def _place(bounds: Ints, positions: Ints) -> Ints:
    """The number of the interval each position falls in, -1 outside all of them."""
    inside = (positions >= bounds[0]) & (positions < bounds[-1])
    return np.where(inside, np.searchsorted(bounds, positions, side="right") - 1, -1)


def _whole(name: str, value: SupportsIndex, least: int = 0) -> int:
    """The value as a plain int; raises PlanError unless it is a whole number >= least."""
    try:
        number = index(value)
    except TypeError:
        raise PlanError(f"{name} {value!r} is not a whole number") from None
    if number < least:
        raise PlanError(f"{name} {number} is less than {least}")
    return number


def _lengths(name: str, values: Sequence[int]) -> tuple[int, ...]:
    lengths = tuple(_whole(f"{name} length", value) for value in values)
    if not lengths or sum(lengths) > LIMIT:
        raise PlanError(
            f"{name}: {len(lengths)} lengths sum to {sum(lengths)}, "
            "where at least one length and at most 2**31 tokens make sense"
        )
    return lengths


def _grid(grid: ArrayLike) -> Allowed:
    """The grid as a boolean array [rows, columns]."""
    try:
        cells = np.asarray(grid)
        fits = cells.ndim == 2 and cells.size > 0 and bool(np.isin(cells, (0, 1)).all())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise PlanError("a Blocks grid is rows of equal length, each of 0s and 1s")
    return cells.astype(np.bool_)
