"""Exchanges: in one step, each rank along an axis sends parts to all other ranks along it.

gather       every part to every rank                  all-to-all   to each rank its heads of parts
return       sums back over a gather or all-to-all     scatter      partial sums to their owners

Recovery expands a candidate and compares the result with the messages of a step. Exchanges at equal
distances in time, with evenly increasing heads, form one exchange of several steps.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringloom.planner.columns import flatten_blocks
from ringloom.planner.ir import Move, Plan
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.fitting import fit_line, fit_plane
from ringloom.planner.loops.form import HELD, Exchange, Expr, Loops, Part, Return, When
from ringloom.planner.loops.places import Value, group_reads
from ringloom.planner.loops.values import Bools, message_codes


class Exchanges(Expansion):
    """The exchanges recovered so far, separate from other messages."""

    def __init__(self, mesh: tuple[int, ...], plan: Plan) -> None:
        super().__init__(Loops(mesh, len(plan.steps), ()), plan, has_places=True)
        self.mesh, self.ranks = mesh, plan.ranks
        self.steps = [step.joined() for step in plan.steps]
        self.exchanges, self.returns = list[Exchange](), list[Return]()

    def without_exchanges(self, t: int, move: Move) -> Move:
        """Records the exchanges of a step and returns the other messages."""
        find = self._find_return if move.accumulates else self._find_exchange
        while len(move) and (result := find(t, move)):
            exchange, rows = result
            self.run_statement(exchange, t)
            move = move.select(~rows)
        return move

    def _find_exchange(self, t: int, move: Move) -> tuple[Exchange, Bools] | None:
        """Returns a complete exchange along an axis and its rows, or None."""
        if len(move) < self.ranks * (min(self.mesh) - 1):
            return None
        delta = (self.coordinates[move.dst] - self.coordinates[move.src])[:, :-1] % self.mesh
        is_single_axis = np.count_nonzero(delta, axis=1) == 1
        for axis, n in enumerate(self.mesh):
            is_on_axis = is_single_axis & (delta[:, axis] > 0)
            is_complete = n > 1 and is_on_axis.sum() == self.ranks * (n - 1)
            if is_complete and (exchange := self._exchange_along(t, move.select(is_on_axis), axis)):
                self.exchanges.append(exchange)
                return exchange, is_on_axis
        return None

    def _find_return(self, t: int, move: Move) -> tuple[Return, Bools] | None:
        """Returns sums that go back over an exchange, or to owners, with their rows, or None."""
        earlier = (s for s in reversed(self.exchanges) if s.when.first < t)
        candidates = [(s.name, s.axis) for s in earlier if s.side == move.side]
        if (HELD, None) in self.values[move.side].named:
            candidates += [(HELD, axis) for axis in range(len(self.mesh))]
        for name, axis in candidates:
            statement = Return(When(t, t), name, move.tensors, axis)
            rows = self._matching_rows(move, self.return_messages(statement, t))
            if rows is not None:
                self.returns.append(statement)
                return statement, rows
        return None

    def _matching_rows(self, move: Move, expected: Move) -> Bools | None:
        """Marks the rows of a move that equal the expected messages; None if any is missing."""
        pairs, expected_pairs = (
            x.src.astype(np.intp) * self.ranks + x.dst for x in (move, expected)
        )
        rows = np.isin(pairs, expected_pairs)
        blocks = 1 + max(int(x.blocks.max(initial=0)) for x in (move, expected))
        a, b = (message_codes(x, self.ranks, blocks) for x in (move.select(rows), expected))
        return rows if len(expected) and np.array_equal(a, b) else None

    def _exchange_along(self, t: int, move: Move, axis: int) -> Exchange | None:
        """Returns the exchange that the messages along an axis form, or None.

        One message per coordinate shows the heads that ranks with this coordinate receive.
        """
        coordinate, first = np.unique(self.coordinates[move.dst, axis], return_index=True)
        groups = group_reads(("send", self.values[move.side], move.src[first], move.blocks[first]))
        count = len(coordinate)
        if count < self.mesh[axis] or any(len(cuts) > 1 for _, cuts in groups):
            return None
        coordinates = np.zeros((count, len(self.mesh)), np.intp)
        coordinates[:, axis] = coordinate
        ends, has_all_heads = np.zeros((count, 2), np.intp), np.zeros(count, np.bool_)
        for rows, (cut,) in groups:
            ends[rows], has_all_heads[rows] = cut.ends[2:], cut.is_whole[1]
        unit = tuple(int(a == axis) for a in range(len(self.mesh)))
        low, high = (
            fit_plane(coordinates, 0 * coordinate, x) or Expr(axes=unit, table=tuple(x.tolist()))
            for x in ends.T
        )
        value, heads = groups[0][1][0].value, None if has_all_heads.all() else (low, high)
        part = Part(value.name, value.age(t))
        exchange = Exchange(When(t, t), f"G{len(self.exchanges)}", move.tensors, part, axis, heads)
        if self._matching_rows(move, self.exchange_messages(exchange, t)[0]) is None:
            return None
        return exchange if self._is_read_together(exchange, t, value, move) else None

    def _is_read_together(self, s: Exchange, t: int, value: Value, move: Move) -> bool:
        """Returns True if a later attend reads blocks from several ranks together."""
        hops = (self.coordinates[move.dst] - self.coordinates[move.src])[:, s.axis]
        origin = np.full(self.values[s.side].place_of.shape, -1, np.int16)
        origin[flatten_blocks(self.all_ranks, value.table.reshape(self.ranks, -1))] = 0
        counts = (move.blocks >= 0).sum(axis=1)
        origin[flatten_blocks(move.dst, move.blocks)] = np.repeat(hops % self.mesh[s.axis], counts)
        for attend in (attend for step in self.steps[t + 1 :] for attend in step.attends):
            blocks = attend.q if s.side == "q" else attend.kv
            origins = origin[attend.rank[:, None], blocks]  # -1 for the block -1
            if ((origins >= 0) & (origins < origins.max(axis=1, keepdims=True))).any():
                return True
        return False

    def join_repeats(self) -> None:
        """Joins exchanges that form one exchange of several steps; gives ages to their returns."""
        by_rule, joined = defaultdict[object, list[Exchange]](list), list[Exchange]()
        forwarded = {s.part.value for s in self.exchanges}
        for s in self.exchanges:
            heads = [replace(e, constant=0) for e in s.heads or ()]
            rule = s.name if s.name in forwarded else str(heads)
            by_rule[s.tensors, s.part, s.axis, rule].append(s)
        for group in by_rule.values():
            combined = _join_steps(group)
            joined += [combined] if combined else group
            for s in group if combined else ():
                value = self.values[s.side].named[s.name, None]
                value.name, value.born = group[0].name, s.when.first + 1
        self.exchanges = joined
        for n, sums in enumerate(self.returns):
            value = self.values[sums.side].named[sums.name, None]
            self.returns[n] = replace(sums, name=value.name, lag=value.age(sums.when.first))


def _join_steps(group: Sequence[Exchange]) -> Exchange | None:
    """Joins three or more exchanges at equal distances with evenly increasing heads, if any."""
    steps, ends = [s.when.first for s in group], list[Expr]()
    distance, *other_distances = {b - a for a, b in pairwise(steps)} or {0}
    if len(steps) < 3 or other_distances or not distance:
        return None
    first, when = group[0], When(steps[0], steps[-1], distance)
    for heads in zip(*(s.heads or () for s in group), strict=True):
        length, fitted = fit_line([x.constant for x in heads], 0, when.first // distance)
        if length < len(steps):
            return None
        clock = {"period": distance, "phase": when.first % distance}
        ends.append(replace(heads[0], constant=fitted.constant, step=fitted.step, **clock))
    return replace(first, when=when, heads=(ends[0], ends[1]) if ends else None)
