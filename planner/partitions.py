"""partition ::= Partition(q=Side, kv=Side)
side      ::= Side(Block, ...)                blocks cover positions x heads exactly once
block     ::= Block(positions, heads, home)   a few ranges of positions, a head slice, a rank

Blocks store their tokens in ascending order, in any order of their ranges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.columns import group_entries
from ringloom.planner.errors import PlanError, as_tuple_of, brief
from ringloom.planner.one_line import OneLine, python
from ringloom.planner.workload import Workload

Ints = NDArray[np.int32]
Ranges = tuple[range, ...]
LARGEST_TABLE = 1 << 28  # entries of a table of ranks x blocks in the verifier and the passes
PRINTED_ROWS = 16  # plans and their parts with more rows or blocks print as a summary
OVERLAP_WINDOW = 1 << 24  # positions checked for overlaps at a time


def check_places(ranks: int, blocks: int) -> None:
    """Raises PlanError if a table of ranks x blocks, or of ranks x ranks, would be too large.

    Schedules with about one block per pair of ranks call this before making any block.
    """
    if ranks * max(ranks, blocks) > LARGEST_TABLE:
        other = f"{ranks} ranks" if ranks > blocks else f"{blocks} blocks"
        raise PlanError(
            f"{ranks} ranks x {other} exceed the limit of {LARGEST_TABLE} table entries"
        )


def describe(value: Any, size: int, summary: str) -> str:
    """Returns the Python that builds a dataclass; for a large `size`, its name and a summary."""
    name = type(value).__name__
    if size > PRINTED_ROWS:
        return f"<{name} {summary}>"
    parts = (f"{field.name}={python(getattr(value, field.name))}" for field in fields(value))
    return f"{name}({', '.join(parts)})"


@dataclass(frozen=True, slots=True, repr=False)
class Block(OneLine):
    """Token positions and a slice of heads that move together, owned by rank `home`."""

    positions: Ranges
    heads: range
    home: int

    def __post_init__(self) -> None:
        positions = as_tuple_of(range, self.positions, "positions")
        for part in positions:
            if part.step < 1 or (part.start < 0 and part):
                raise PlanError(f"positions must ascend from 0 or above, not {part}")
        as_tuple_of(range, (self.heads,), "heads")
        if self.heads.step != 1 or self.heads.start < 0 or not self.heads:
            raise PlanError(f"heads must be a non-empty range of step 1, not {self.heads}")
        if self.home < 0:
            raise PlanError(f"home must be a rank, 0 or above, not {self.home}")
        object.__setattr__(self, "positions", tuple(filter(None, positions)))

    @property
    def python(self) -> str:
        """The Python that builds the block."""
        return f"Block(positions={self.positions}, heads={self.heads}, home={self.home})"

    @property
    def size(self) -> int:
        """Number of tokens in the block."""
        return sum(map(len, self.positions))

    def tokens(self) -> NDArray[np.int64]:
        """Returns the positions of the block's tokens, ascending: int64 [size]."""
        return sorted_positions(self.positions)


def sorted_positions(positions: Ranges) -> NDArray[np.int64]:
    """Returns all positions of the ranges, ascending."""
    parts = [np.arange(p.start, p.stop, p.step, dtype=np.int64) for p in positions]
    if len(parts) == 1 and positions[0].step > 0:
        return parts[0]
    return np.sort(np.concatenate(parts), kind="stable") if parts else np.zeros(0, np.int64)


def _concatenate(pieces: Iterable[Ranges]) -> NDArray[np.int64]:
    """Returns the positions of the distinct pieces, one piece after another."""
    parts = [sorted_positions(positions) for positions in dict.fromkeys(pieces)]
    return np.concatenate(parts or [np.zeros(0, np.int64)])


def shift_ranges(positions: Ranges, by: int) -> Ranges:
    """Shifts ranges by a number of positions."""
    return tuple(range(p.start + by, p.stop + by, p.step) for p in positions)


@dataclass(frozen=True)
class Side:
    """The blocks of the query side or of the KV side, by number."""

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", as_tuple_of(Block, self.blocks, "blocks"))

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property  # keys of `tiles_of`: benchmarks/bench_scale.py
    def _hash(self) -> int:
        return hash(self.blocks)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return describe(self, len(self), f"of {len(self)} blocks")

    @cached_property  # `ringloom compare --ranks 1024`, usp
    def _tiled(self) -> set[tuple[int, int]]:
        """The (tokens, heads) that the blocks were found to cover exactly once."""
        return set()

    @cached_property  # passes ask for each message: `ringloom compare --ranks 1024`
    def owners(self) -> Ints:
        """The rank that owns each block."""
        return np.array([b.home for b in self.blocks], np.int32)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Tokens of each block."""
        return np.array([sum(map(len, c)) for c in self.chunks], np.int64)[self.chunk]

    @property
    def head_counts(self) -> NDArray[np.int64]:
        """Heads of each block."""
        return np.array([len(s) for s in self.slices], np.int64)[self.slice]

    @cached_property  # benchmarks/bench_scale.py, zigzag
    def chunks(self) -> tuple[Ranges, ...]:
        """The distinct sets of positions; blocks of different head slices share one."""
        return tuple(dict.fromkeys(b.positions for b in self.blocks))

    @cached_property  # `ringloom compare --ranks 64` takes 1.4 times as long without
    def chunk(self) -> Ints:
        """Index into `chunks` of each block."""
        return _indices((b.positions for b in self.blocks), self.chunks)

    @cached_property  # benchmarks/bench_scale.py, usp
    def slices(self) -> tuple[range, ...]:
        """The distinct head slices."""
        return tuple(dict.fromkeys(b.heads for b in self.blocks))

    @cached_property  # benchmarks/bench_scale.py, usp
    def slice(self) -> Ints:
        """Index into `slices` of each block."""
        return _indices((b.heads for b in self.blocks), self.slices)

    def owned(self, ranks: int) -> Ints:
        """Returns the blocks that each rank owns, in order: int32 [ranks, most], padded with -1.

        The table is column-major, since plans are built and read by columns.
        """
        return group_entries(self.owners, ranks)

    def positions(self, rank: int) -> NDArray[np.int64]:
        """Returns the positions that `rank` owns, in layout order; head slices count once."""
        return _concatenate(b.positions for b in self.blocks if b.home == rank)

    def shards(self, ranks: int) -> list[NDArray[np.int64]]:
        """Returns the positions of each rank."""
        pieces: list[list[Ranges]] = [[] for _ in range(ranks)]
        for block in self.blocks:
            pieces[block.home].append(block.positions)
        return [*map(_concatenate, pieces)]

    def check_tiling(self, tokens: int, heads: int, name: str) -> None:
        """Raises PlanError unless the blocks cover `tokens` x `heads` exactly once.

        Checks each side once, since passes make many plans with the same sides.
        """
        if (tokens, heads) in self._tiled:
            return
        cuts = sorted({0, heads} | {e for s in self.slices for e in (s.start, s.stop)})
        if cuts[-1] > heads:
            raise PlanError(f"{name} side: a head slice ends at {cuts[-1]} of {heads} heads")
        checked = set[bytes]()
        for low, high in pairwise(cuts):
            has_heads = np.array([s.start <= low and high <= s.stop for s in self.slices], bool)
            numbers = self.chunk[has_heads[self.slice]]
            if (key := numbers.tobytes()) not in checked:
                chunks = [self.chunks[c] for c in numbers]
                _check_cover(chunks, tokens, f"{name} side, heads {low}..{high - 1}")
                checked.add(key)
        self._tiled.add((tokens, heads))


def heads_in_common(q: Sequence[range], kv: Sequence[range], group: int) -> NDArray[np.int64]:
    """Counts the query heads of each q slice whose KV head is in each kv slice: int64 [q, kv]."""
    low = np.maximum.outer([s.start for s in q], [s.start * group for s in kv])
    high = np.minimum.outer([s.stop for s in q], [s.stop * group for s in kv])
    return np.asarray(np.maximum(high - low, 0))


def _indices(items: Iterable[object], distinct: tuple[object, ...]) -> Ints:
    number = {item: i for i, item in enumerate(distinct)}
    return np.array([number[item] for item in items], np.int32)


def _check_contiguous(parts: Sequence[range], tokens: int, place: str) -> None:
    """Raises PlanError unless ranges of step 1 cover the tokens; takes no time per token."""
    end = 0
    for p in sorted((p for p in parts if p), key=lambda p: p.start):
        if p.start != end:
            owners = "no block" if p.start > end else "more than one block"
            raise PlanError(f"{place}: position {min(p.start, end)} belongs to {owners}")
        end = p.stop
    if end < tokens:
        raise PlanError(f"{place}: position {end} belongs to no block")


def _check_cover(chunks: Sequence[Ranges], tokens: int, place: str) -> None:
    parts = [p for chunk in chunks for p in chunk]
    last = max((p[-1] + 1 for p in parts), default=0)
    if last > tokens:
        raise PlanError(f"{place}: position {last - 1} lies beyond the {tokens} tokens")
    if all(p.step == 1 for p in parts):
        _check_contiguous(parts, tokens, place)
        return
    for low in range(0, tokens, OVERLAP_WINDOW):
        high = min(tokens, low + OVERLAP_WINDOW)
        count = np.zeros(high - low, np.uint8)
        for p in parts:
            first = p.start + max(0, -(-(low - p.start) // p.step)) * p.step
            if first < min(high, p.stop):
                cut = slice(first - low, min(high, p.stop) - low, p.step)
                np.minimum(count[cut] + 1, 2, out=count[cut])
        if (count != 1).any():
            position = int(np.argmax(count != 1))
            owners = "no block" if count[position] == 0 else "more than one block"
            raise PlanError(f"{place}: position {low + position} belongs to {owners}")


@dataclass(frozen=True)
class Partition:
    """The owners of queries (`q`) and of keys and values (`kv`)."""

    q: Side
    kv: Side

    def __post_init__(self) -> None:
        as_tuple_of(Side, (self.q, self.kv), "sides")

    def __repr__(self) -> str:
        q, kv = len(self.q), len(self.kv)
        return describe(self, max(q, kv), f"of {q} query blocks and {kv} KV blocks")

    def side(self, name: str) -> Side:
        """Returns the query side for "q", the KV side for "kv"."""
        if name not in ("q", "kv"):
            raise PlanError(f"side must be q or kv, not {brief(name)}")
        return self.q if name == "q" else self.kv

    def check(self, work: Workload, ranks: int) -> None:
        """Raises PlanError unless each side covers the workload once, with owners below `ranks`."""
        for name, side, tokens, heads in (
            ("query", self.q, work.seq, work.heads),
            ("KV", self.kv, work.kv_seq, work.kv_heads),
        ):
            if len(side) and (owner := int(side.owners.max())) >= ranks:
                raise PlanError(
                    f"{name} side: rank {owner} owns a block, but there are {ranks} ranks"
                )
            side.check_tiling(tokens, heads, name)
