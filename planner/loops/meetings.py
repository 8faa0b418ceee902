"""Meetings: the rectangles of a value of queries with a value of keys in one step."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ringloom.planner.analysis.tiles import Tiles, without_dead_blocks
from ringloom.planner.columns import distinct_values, has_duplicates
from ringloom.planner.ir import Attend
from ringloom.planner.loops.form import Ints
from ringloom.planner.loops.places import Value
from ringloom.planner.loops.values import have_same_blocks


def split_by_value(
    tiles: Tiles, attend: Attend, q_of: Ints, kv_of: Ints
) -> Iterator[tuple[int, int, Attend]]:
    """Splits rectangles by the values of their blocks (-1: no value), and drops dead blocks."""
    q_values, kv_values = (distinct_values(of[of >= 0]).tolist() for of in (q_of, kv_of))
    for q in q_values:
        for kv in kv_values:
            q_blocks = np.where(q_of == q, attend.q, -1)
            kv_blocks = np.where(kv_of == kv, attend.kv, -1)
            part = Attend(attend.rank, q_blocks, kv_blocks)
            is_single = len(q_values) == len(kv_values) == 1
            part = attend if is_single else without_dead_blocks(tiles, part)
            if len(part):
                yield q, kv, part


class Meeting:
    """The rectangles of two values; one per rank if they cover all allowed pairs."""

    def __init__(self, tiles: Tiles, q: Value, kv: Value, attend: Attend) -> None:
        self.tiles, self.q, self.kv, self.attend = tiles, q, kv, attend
        if has_duplicates(attend.rank.astype(np.intp)) and self._is_covered:
            self.attend = self._on_attending_ranks

    @cached_property
    def all_pairs(self) -> Attend | None:
        """All allowed pairs of the two values, on all ranks; None for several head slices."""
        if any(value.heads > 1 for value in (self.q, self.kv)):
            return None
        tables = (value.table.reshape(len(value.table), -1) for value in (self.q, self.kv))
        return without_dead_blocks(self.tiles, Attend(np.arange(len(self.q.table)), *tables))

    @cached_property
    def is_complete(self) -> bool:
        """True if the rectangles cover all allowed pairs of the values on ranks that attend."""
        rows = self.attend
        if self.all_pairs is None or has_duplicates(rows.rank.astype(np.intp)):
            return False
        order = np.argsort(rows.rank)
        allowed = self._on_attending_ranks
        sides = (allowed.q, rows.q[order]), (allowed.kv, rows.kv[order])
        return all(have_same_blocks(*pair) for pair in sides)

    @property
    def idle(self) -> Ints:
        """The ranks that have the two values, but no allowed pair."""
        has_value = [(value.table >= 0).any(axis=(1, 2)) for value in (self.q, self.kv)]
        assert self.all_pairs
        return np.setdiff1d(np.flatnonzero(has_value[0] & has_value[1]), self.all_pairs.rank)

    @property
    def _on_attending_ranks(self) -> Attend:
        """All allowed pairs of the two values on ranks that attend."""
        assert self.all_pairs
        return self.all_pairs.select(np.isin(self.all_pairs.rank, self.attend.rank))

    @property
    def _is_covered(self) -> bool:
        """True if the rectangles have all allowed pairs of blocks of the two values."""
        if self.all_pairs is None:
            return False
        allowed, attended = (
            live_pairs(self.tiles, rows) for rows in (self._on_attending_ranks, self.attend)
        )
        return np.array_equal(allowed, attended)


def live_pairs(tiles: Tiles, attend: Attend) -> Ints:
    """Returns one number per rank and live pair of blocks, ascending."""
    q, kv = attend.q[:, :, None], attend.kv[:, None, :]
    sides = tiles.partition
    codes = (attend.rank.astype(np.int64)[:, None, None] * len(sides.q) + q) * len(sides.kv) + kv
    return np.sort(codes[tiles.live(q, kv)])
