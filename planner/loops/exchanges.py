"""Exchanges: in one step, all ranks along an axis send everything, or shares, to all others.

gather       every part to every rank               all-to-all   to each rank its share of the part
return       sums back over the messages of either  scatter      shares of sums to their owners

An exchange is recovered from the messages of a step by expanding a candidate and comparing.
Exchanges of evenly rising heads at equal distances in time form one exchange of several steps.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringloom.planner.columns import flat
from ringloom.planner.ir import Move, Plan
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.fitting import line, plane
from ringloom.planner.loops.form import HELD, Exchange, Expr, Loops, Part, Return, When
from ringloom.planner.loops.places import Value, read
from ringloom.planner.loops.values import Bools, codes


class Exchanges(Expansion):
    """The exchanges recovered so far; separates exchanges from single messages."""

    def __init__(self, mesh: tuple[int, ...], plan: Plan) -> None:
        super().__init__(Loops(mesh, len(plan.steps), ()), plan, placed=True)
        self.mesh, self.ranks = mesh, plan.ranks
        self.steps = [step.joined() for step in plan.steps]
        self.exchanges, self.returns = list[Exchange](), list[Return]()

    def apart(self, t: int, move: Move) -> Move:
        """Records the exchanges of a step, and returns the messages that belong to none."""
        find = self._return if move.accumulates else self._exchange
        while len(move) and (hit := find(t, move)):
            exchange, its = hit
            self.moved(exchange, t)
            move = move.only(~its)
        return move

    def _exchange(self, t: int, move: Move) -> tuple[Exchange, Bools] | None:
        """Returns a complete exchange along an axis and its rows, or None."""
        if len(move) < self.ranks * (min(self.mesh) - 1):
            return None
        delta = (self.coordinates[move.dst] - self.coordinates[move.src])[:, :-1] % self.mesh
        along = np.count_nonzero(delta, axis=1) == 1
        for axis, n in enumerate(self.mesh):
            on = along & (delta[:, axis] > 0)
            complete = n > 1 and on.sum() == self.ranks * (n - 1)
            if complete and (exchange := self._along(t, move.only(on), axis)):
                self.exchanges.append(exchange)
                return exchange, on
        return None

    def _return(self, t: int, move: Move) -> tuple[Return, Bools] | None:
        """Returns sums that go back over an exchange, or to owners, and their rows, or None."""
        before = (s for s in reversed(self.exchanges) if s.when.first < t)
        ways = [(s.name, s.axis) for s in before if s.side == move.side]
        if (HELD, None) in self.values[move.side].named:
            ways += [(HELD, axis) for axis in range(len(self.mesh))]
        for name, axis in ways:
            back = Return(When(t, t), name, move.tensors, axis)
            rows = self._among(move, self.returned(back, t))
            if rows is not None:
                self.returns.append(back)
                return back, rows
        return None

    def _among(self, move: Move, made: Move) -> Bools | None:
        """Returns the rows of a move that equal the expanded messages; None if any is missing."""
        pairs, made_pairs = (x.src.astype(np.intp) * self.ranks + x.dst for x in (move, made))
        rows = np.isin(pairs, made_pairs)
        width = 1 + max(int(x.blocks.max(initial=0)) for x in (move, made))
        picked, made_codes = (codes(x, self.ranks, width) for x in (move.only(rows), made))
        return rows if len(made) and np.array_equal(picked, made_codes) else None

    def _along(self, t: int, move: Move, axis: int) -> Exchange | None:
        """Returns the exchange that the messages along an axis form, or None.

        One message per coordinate shows which heads are sent there.
        """
        to, at = np.unique(self.coordinates[move.dst, axis], return_index=True)
        groups = read(("send", self.values[move.side], move.src[at], move.blocks[at]))
        if len(to) < self.mesh[axis] or any(len(cuts) > 1 for _, cuts in groups):
            return None
        where = np.zeros((len(to), len(self.mesh)), np.intp)
        ends, whole = np.zeros((len(to), 2), np.intp), np.zeros(len(to), np.bool_)
        where[:, axis] = to
        for rows, (cut,) in groups:
            ends[rows], whole[rows] = cut.ends[2:], cut.whole[1]
        unit = tuple(int(a == axis) for a in range(len(self.mesh)))
        low, high = (
            plane(where, 0 * to, x) or Expr(axes=unit, table=tuple(x.tolist())) for x in ends.T
        )
        value, heads = groups[0][1][0].value, None if whole.all() else (low, high)
        part = Part(value.name, value.age(t))
        exchange = Exchange(When(t, t), f"G{len(self.exchanges)}", move.tensors, part, axis, heads)
        all_there = self._among(move, self.exchanged(exchange, t)[0]) is not None
        return exchange if all_there and self._read_as_one(exchange, t, value, move) else None

    def _read_as_one(self, s: Exchange, t: int, value: Value, move: Move) -> bool:
        """Returns True if a later attend reads blocks from several ranks together."""
        hops = (self.coordinates[move.dst] - self.coordinates[move.src])[:, s.axis]
        origin = np.full(self.values[s.side].code.shape, -1, np.int16)
        origin[flat(self.everyone, value.table.reshape(self.ranks, -1))] = 0
        many = (move.blocks >= 0).sum(axis=1)
        origin[flat(move.dst, move.blocks)] = np.repeat(hops % self.mesh[s.axis], many)
        for attend in (attend for step in self.steps[t + 1 :] for attend in step.attends):
            read = attend.q if s.side == "q" else attend.kv
            seen = origin[attend.rank[:, None], read]  # -1 for the block -1
            if ((seen >= 0) & (seen < seen.max(axis=1, keepdims=True))).any():
                return True
        return False

    def repeated(self) -> None:
        """Joins exchanges that form one exchange of several steps; returns then use ages."""
        alike, made = defaultdict[object, list[Exchange]](list), list[Exchange]()
        passed_on = {s.part.value for s in self.exchanges}
        for s in self.exchanges:
            of = s.name if s.name in passed_on else [replace(e, constant=0) for e in s.heads or ()]
            alike[s.tensors, s.part, s.axis, str(of)].append(s)
        for group in alike.values():
            whole = _together(group)
            made += [whole] if whole else group
            for s in group if whole else ():
                value = self.values[s.side].named[s.name, None]
                value.name, value.born = group[0].name, s.when.first + 1
        self.exchanges = made
        for n, back in enumerate(self.returns):
            value = self.values[back.side].named[back.name, None]
            self.returns[n] = replace(back, name=value.name, lag=value.age(back.when.first))


def _together(group: Sequence[Exchange]) -> Exchange | None:
    """Joins three or more exchanges at equal distances whose heads rise evenly, else None."""
    steps, ends = [s.when.first for s in group], list[Expr]()
    every, *others = {b - a for a, b in pairwise(steps)} or {0}
    if len(steps) < 3 or others or not every:
        return None
    first, when = group[0], When(steps[0], steps[-1], every)
    for heads in zip(*(s.heads or () for s in group), strict=True):
        many, e = line([x.constant for x in heads], 0, when.first // every)
        if many < len(steps):
            return None
        clock = {"period": every, "phase": when.first % every}
        ends.append(replace(heads[0], constant=e.constant, step=e.step, **clock))
    return replace(first, when=when, heads=(ends[0], ends[1]) if ends else None)
