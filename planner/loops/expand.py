"""expand(loops, plan)   expands a loop form to the rows of each step."""

from collections import defaultdict

import numpy as np

from ringloom.planner import ir
from ringloom.planner.analysis.tiles import tiles, without_dead_blocks
from ringloom.planner.columns import by_group, flat, hstack, take_rows, vstack_padded
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import (
    HELD,
    OWN,
    Attend,
    Exchange,
    Ints,
    Loops,
    Part,
    Return,
    Root,
    Send,
    Shift,
    Start,
)
from ringloom.planner.loops.places import Value, Values
from ringloom.planner.loops.values import Copies, held_blocks, same, slice_part
from ringloom.planner.partitions import Side

SIDES = ("q", "kv")
Moving = Start | Send | Exchange | Return


def scatter_blocks(table: Ints, side: Side, where: Ints, axis: int) -> tuple[Ints, Ints, Ints]:
    """Returns blocks [n, w] of a table owned by others along an axis, with holders and owners."""
    ranks = len(table)
    rank, block = flat(np.arange(ranks), table.reshape(ranks, -1))
    owner = side.owners[block].astype(np.intp)
    apart = where[rank, :-1] != where[owner, :-1]
    on = apart[:, axis] & (apart.sum(axis=1) == 1)
    pairs, number = np.unique(rank[on] * ranks + owner[on], return_inverse=True)
    return np.append(block[on], -1)[by_group(number, len(pairs))], *np.divmod(pairs, ranks)


class Expansion:
    """The values of all names, step by step, and the resulting rows.

    `rectangles` are those of attends; `brought` has the messages of exchanges, for returns.
    """

    def __init__(self, loops: Loops, plan: ir.Plan, placed: bool = False) -> None:
        self.loops, self.plan = loops, plan  # which gives blocks, and copies held from the start
        self.coordinates = loops.coordinates()
        self.everyone = np.arange(len(self.coordinates), dtype=np.int32)
        sides = {side: plan.partition.side(side) for side in SIDES}
        self.values = {s: Values(plan.ranks, blocks, placed) for s, blocks in sides.items()}
        self.rectangles = defaultdict[Attend, dict[int, ir.Attend]](dict)
        self.filled = {  # where there are sums, and a column for block -1
            s: np.zeros((plan.ranks, len(blocks) + 1), np.bool_) for s, blocks in sides.items()
        }
        self.brought: dict[tuple[str, int | None], ir.Move] = {}
        self.coming = defaultdict[tuple[str, str, int | None], list[Copies]](list)
        self.added = list[tuple[str, Ints, Ints]]()  # sums of this step, and of those before
        self.before = list[tuple[str, Ints, Ints]]()  # that `filled` has not yet
        for side, values in self.values.items():
            values.add(OWN, None, sides[side].owners, np.arange(len(sides[side]))[:, None])
            if (table := held_blocks(plan, side)) is not None:
                values.add(HELD, None, self.everyone, table.reshape(plan.ranks, -1))

    def blocks(self, part: Part, side: str, t: int, who: Ints) -> Ints:
        """The blocks [n, w] of a part on ranks `who`."""
        table = take_rows(self.value(part, side, t).table, who)
        return slice_part(table, part, t, take_rows(self.coordinates, who))

    def value(self, part: Part, side: str, t: int) -> Value:
        """The value that a part is of."""
        for age in (None, t - part.lag):
            if value := self.values[side].named.get((part.value, age)):
                return value
        raise PlanError(f"step {t}: {part.value} is read, but there is none of that age")

    def step(self, t: int) -> ir.Step:
        """Run a step."""
        running = [s for s in self.loops.statements if s.when.on(t)]
        moves = [self.moved(s, t) for s in running if not isinstance(s, Attend)]
        attends = [self.attend(s, t) for s in running if isinstance(s, Attend)]
        self.arrive()
        return ir.Step(tuple(attends), tuple(filter(None, moves))).joined()

    def moved(self, s: Moving, t: int) -> ir.Move | None:
        """The messages of a statement; what they bring is there from the next step on."""
        match s:
            case Start():
                self.start(s, t)
                return None
            case Exchange():
                return self.exchange(s, t)
            case Send() | Return():
                move = self.send(s, t) if isinstance(s, Send) else self.returned(s, t)
        if s.sums:
            self.added.append((s.side, move.dst, move.blocks))
        return move

    def start(self, s: Start, t: int) -> None:
        """Gives a value another name."""
        blocks = self.blocks(s.part, s.side, t, self.everyone)
        self.values[s.side].add(s.name, t, self.everyone, blocks)

    def send(self, s: Send, t: int) -> ir.Move:
        """Returns the messages of a send; what they bring is named from the next step on."""
        src, dst = pairs(self.loops, s, t)
        sent = hstack([self.blocks(p, s.side, t, src) for p in s.parts])
        if not s.sums:
            self.coming[s.name, s.side, t + 1].append((dst, sent))
        elif s.into and not same(self.blocks(s.into, s.side, t, dst), sent):
            raise PlanError(
                f"step {t}: sums are added into {s.into.value}, but are for other blocks"
            )
        return ir.Move(s.tensors, sent, take_rows(self.everyone, src), dst)

    def exchanged(self, s: Exchange, t: int) -> tuple[ir.Move, Ints]:
        """Returns the messages of an exchange, and the blocks that each rank keeps."""
        table, share = self.value(s.part, s.side, t).table, Part("to", heads=s.heads)
        mesh, where, parts = self.loops.mesh, self.coordinates, list[Copies]()
        for hop in range(mesh[s.axis]):
            to = where[:, :-1].copy()
            to[:, s.axis] = (to[:, s.axis] + hop) % mesh[s.axis]
            dst = np.ravel_multi_index(tuple(to.T), mesh)
            parts.append((dst, slice_part(table, share, t, where[dst])))
        dst, blocks = (vstack_padded(column) for column in zip(*parts[1:], strict=True))
        return ir.Move(s.tensors, blocks, np.tile(self.everyone, len(parts) - 1), dst), parts[0][1]

    def exchange(self, s: Exchange, t: int) -> ir.Move:
        """Returns the messages of an exchange; its value includes the blocks that ranks keep."""
        (move, kept), born = self.exchanged(s, t), t + 1 if s.again else None
        self.coming[s.name, s.side, born] += [(self.everyone, kept), (move.dst, move.blocks)]
        self.brought[s.name, born] = move
        return move

    def returned(self, s: Return, t: int) -> ir.Move:
        """Returns the messages of sums that go back along an axis, without empty ones."""
        value, side = self.value(Part(s.name, s.lag), s.side, t), self.plan.partition.side(s.side)
        if s.name == HELD:
            move = ir.Move(s.tensors, *scatter_blocks(value.table, side, self.coordinates, s.axis))
        elif brought := self.brought.get((s.name, value.born)):
            move = ir.Move(s.tensors, brought.blocks, brought.dst, brought.src)
        else:
            raise PlanError(f"{s.name} is returned, but is what no exchange brought")
        for name, rank, blocks in self.before:
            self.filled[name][rank[:, None], blocks] = True
        self.before.clear()
        sums = self.filled[s.side][move.src[:, None], move.blocks] & (move.blocks >= 0)
        return move.only(np.asarray(sums.any(axis=1)))

    def arrive(self) -> None:
        """Makes values in transit readable."""
        for (name, side, born), parts in self.coming.items():
            rank, blocks = (vstack_padded(column) for column in zip(*parts, strict=True))
            self.values[side].add(name, born, rank, blocks)
        self.before += self.added
        self.coming.clear()
        self.added.clear()

    @property
    def tables(self) -> dict[tuple[str, str], Ints]:
        """Blocks of own and held values, and of the latest values of exchanges."""
        stay = {OWN, HELD, *self.loops.exchanges}
        each = ((side, x) for side, values in self.values.items() for x in values.values)
        return {(side, x.name): x.table for side, x in each if x.name in stay}

    def attend(self, s: Attend, t: int) -> ir.Attend:
        """Returns the rectangles of an attend."""
        who = take_rows(self.everyone, np.flatnonzero(s.when.guard.at(t, self.coordinates)))
        q, kv = (
            hstack([self.blocks(p, side, t, who) for p in parts])
            for side, parts in (("q", s.q), ("kv", s.kv))
        )
        attend = ir.Attend(who, q, kv)
        if s.kind == "tiles" and len(attend):
            attend = without_dead_blocks(tiles(self.plan), attend)
        elif len(attend) < len(who):
            raise PlanError(f"step {t}: a rank attends to nothing")
        self.added += [("q", attend.rank, attend.q), ("kv", attend.rank, attend.kv)]
        self.rectangles[s][t] = attend
        return attend


def pairs(loops: Loops, s: Send, t: int) -> tuple[Ints, Ints]:
    """Returns the senders and the receivers of a step."""
    asked = loops.coordinates()
    to = ends(s, t, loops.mesh, asked)
    broadcast, ranks = isinstance(s.hop, Root) and not s.sums, asked[:, -1]
    if s.when.guard.receiver and not broadcast:
        asked = asked[to]
    who = np.flatnonzero(s.when.guard.at(t, asked) & (to != ranks))
    return (to[who], who) if broadcast else (who, to[who])


def ends(s: Send, t: int, mesh: tuple[int, ...], coordinates: Ints) -> Ints:
    """Returns the rank that each rank sends to, or receives from if that is a root."""
    match s.hop:
        case Shift():
            to = [coordinates[:, a] + e.at(t, coordinates) for a, e in enumerate(s.hop.by)]
        case Root():
            to = [*coordinates[:, :-1].T]
            to[s.hop.axis] = s.hop.root.at(t, coordinates)
    return np.ravel_multi_index(tuple(to), mesh, mode="wrap")


def expand(loops: Loops, plan: ir.Plan) -> Expansion:
    """Expands all steps."""
    made = Expansion(loops, plan)
    for t in range(loops.steps):
        made.step(t)
    return made
