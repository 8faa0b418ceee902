"""Meetings: the rectangles of a value of queries and a value of keys in one step."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ringloom.planner.analysis.tiles import Tiles, without_dead_blocks
from ringloom.planner.columns import distinct, has_duplicates
from ringloom.planner.ir import Attend
from ringloom.planner.loops.form import Ints
from ringloom.planner.loops.places import Value
from ringloom.planner.loops.values import same


def split_by_value(
    tiles: Tiles, attend: Attend, q_of: Ints, kv_of: Ints
) -> Iterator[tuple[int, int, Attend]]:
    """Yields rectangles split by the values of their blocks (-1: none), without dead blocks."""
    many_q, many_kv = (distinct(of[of >= 0]).tolist() for of in (q_of, kv_of))
    for q in many_q:
        for kv in many_kv:
            left = np.where(q_of == q, attend.q, -1)
            right = np.where(kv_of == kv, attend.kv, -1)
            alone = len(many_q) == len(many_kv) == 1
            part = attend if alone else without_dead_blocks(tiles, Attend(attend.rank, left, right))
            if len(part):
                yield q, kv, part


class Meeting:
    """All rectangles of two values; joined to one per rank if they cover all allowed pairs."""

    def __init__(self, tiles: Tiles, q: Value, kv: Value, attend: Attend) -> None:
        self.tiles, self.q, self.kv, self.attend = tiles, q, kv, attend
        if has_duplicates(attend.rank.astype(np.intp)) and self._all_there:
            self.attend = self._left

    @cached_property
    def everything(self) -> Attend | None:
        """All allowed pairs of both values, on all ranks; None if heads are attended separately."""
        if any(value.heads > 1 for value in (self.q, self.kv)):
            return None
        tables = (value.table.reshape(len(value.table), -1) for value in (self.q, self.kv))
        return without_dead_blocks(self.tiles, Attend(np.arange(len(self.q.table)), *tables))

    @cached_property
    def complete(self) -> bool:
        """True if the rectangles cover all allowed pairs of both values on ranks that attend."""
        rows = self.attend
        if self.everything is None or has_duplicates(rows.rank.astype(np.intp)):
            return False
        order = np.argsort(rows.rank)
        left = self._left
        return same(left.q, rows.q[order]) and same(left.kv, rows.kv[order])

    @property
    def idle(self) -> Ints:
        """The ranks that have both values, but no allowed pair."""
        here = [(value.table >= 0).any(axis=(1, 2)) for value in (self.q, self.kv)]
        assert self.everything
        return np.setdiff1d(np.flatnonzero(here[0] & here[1]), self.everything.rank)

    @property
    def _left(self) -> Attend:
        """All allowed pairs of both values on ranks that attend."""
        assert self.everything
        return self.everything.only(np.isin(self.everything.rank, self.attend.rank))

    @property
    def _all_there(self) -> bool:
        """True if the rectangles have all allowed pairs of blocks of both values."""
        if self.everything is None:
            return False
        left, pairs = (live_pairs(self.tiles, rows) for rows in (self._left, self.attend))
        return np.array_equal(left, pairs)


def live_pairs(tiles: Tiles, attend: Attend) -> Ints:
    """Returns one number per rank and live pair of blocks, ascending."""
    q, kv = attend.q[:, :, None], attend.kv[:, None, :]
    sides = tiles.partition
    codes = (attend.rank.astype(np.int64)[:, None, None] * len(sides.q) + q) * len(sides.kv) + kv
    return np.sort(codes[tiles.live(q, kv)])
