"""expand(loops, plan)   expands a loop form to the rows of each step."""

from collections import defaultdict

import numpy as np

from ringloom.planner import ir
from ringloom.planner.analysis.tiles import tiles, without_dead_blocks
from ringloom.planner.columns import flatten_blocks, group_entries, hstack, take_rows, vstack_padded
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
from ringloom.planner.loops.values import Copies, have_same_blocks, held_blocks, slice_part
from ringloom.planner.partitions import Side

SIDES = ("q", "kv")
Delivering = Start | Send | Exchange | Return


def scatter_blocks(
    table: Ints, side: Side, coordinates: Ints, axis: int
) -> tuple[Ints, Ints, Ints]:
    """Returns blocks [n, w] whose owners are other ranks along an axis, with holders and owners."""
    ranks = len(table)
    rank, block = flatten_blocks(np.arange(ranks), table.reshape(ranks, -1))
    owner = side.owners[block].astype(np.intp)
    differs = coordinates[rank, :-1] != coordinates[owner, :-1]
    is_along = differs[:, axis] & (differs.sum(axis=1) == 1)
    rank, owner, block = rank[is_along], owner[is_along], block[is_along]
    pairs, number = np.unique(rank * ranks + owner, return_inverse=True)
    return np.append(block, -1)[group_entries(number, len(pairs))], *np.divmod(pairs, ranks)


class Expansion:
    """The values of all names, step by step, and the resulting rows.

    `rectangles` has the rectangles of attends, `received` the messages of exchanges.
    """

    def __init__(self, loops: Loops, plan: ir.Plan, has_places: bool = False) -> None:
        self.loops, self.plan = loops, plan
        self.coordinates = loops.coordinates()
        self.all_ranks = np.arange(len(self.coordinates), dtype=np.int32)
        sides = {side: plan.partition.side(side) for side in SIDES}
        self.values = {s: Values(plan.ranks, blocks, has_places) for s, blocks in sides.items()}
        self.rectangles = defaultdict[Attend, dict[int, ir.Attend]](dict)
        self.has_sums = {  # True for existing sums; the last column is for block -1
            s: np.zeros((plan.ranks, len(blocks) + 1), np.bool_) for s, blocks in sides.items()
        }
        self.received: dict[tuple[str, int | None], ir.Move] = {}
        self.in_transit = defaultdict[tuple[str, str, int | None], list[Copies]](list)
        self.new_sums = list[tuple[str, Ints, Ints]]()  # of this step
        self.earlier_sums = list[tuple[str, Ints, Ints]]()  # missing in `has_sums`
        for side, values in self.values.items():
            values.add(OWN, None, sides[side].owners, np.arange(len(sides[side]))[:, None])
            if (table := held_blocks(plan, side)) is not None:
                values.add(HELD, None, self.all_ranks, table.reshape(plan.ranks, -1))

    def blocks(self, part: Part, side: str, t: int, ranks: Ints) -> Ints:
        """Returns the blocks of a part on the given ranks [n]: [n, w]."""
        table = take_rows(self.value(part, side, t).table, ranks)
        return slice_part(table, part, t, take_rows(self.coordinates, ranks))

    def value(self, part: Part, side: str, t: int) -> Value:
        """Returns the value of a part; raises PlanError if there is none."""
        for birth in (None, t - part.lag):
            if value := self.values[side].named.get((part.value, birth)):
                return value
        raise PlanError(f"step {t}: a statement reads {part.value}, but there is none of its age")

    def step(self, t: int) -> ir.Step:
        """Runs a step and returns its rows."""
        statements = [s for s in self.loops.statements if s.when.on(t)]
        moves = [self.run_statement(s, t) for s in statements if not isinstance(s, Attend)]
        attends = [self.attend(s, t) for s in statements if isinstance(s, Attend)]
        self.deliver()
        return ir.Step(tuple(attends), tuple(filter(None, moves))).joined()

    def run_statement(self, s: Delivering, t: int) -> ir.Move | None:
        """Runs a statement and returns its messages, if any; they arrive after the step."""
        match s:
            case Start():
                self.start(s, t)
                return None
            case Exchange():
                return self.exchange(s, t)
            case Send() | Return():
                move = self.send(s, t) if isinstance(s, Send) else self.return_messages(s, t)
        if s.sums:
            self.new_sums.append((s.side, move.dst, move.blocks))
        return move

    def start(self, s: Start, t: int) -> None:
        """Gives a value another name."""
        blocks = self.blocks(s.part, s.side, t, self.all_ranks)
        self.values[s.side].add(s.name, t, self.all_ranks, blocks)

    def send(self, s: Send, t: int) -> ir.Move:
        """Returns the messages of a send; their blocks have a name from the next step on."""
        src, dst = find_pairs(self.loops, s, t)
        blocks = hstack([self.blocks(p, s.side, t, src) for p in s.parts])
        if not s.sums:
            self.in_transit[s.name, s.side, t + 1].append((dst, blocks))
        elif s.into and not have_same_blocks(self.blocks(s.into, s.side, t, dst), blocks):
            raise PlanError(
                f"step {t}: sums are added to {s.into.value}, but belong to other blocks"
            )
        return ir.Move(s.tensors, blocks, take_rows(self.all_ranks, src), dst)

    def exchange_messages(self, s: Exchange, t: int) -> tuple[ir.Move, Ints]:
        """Returns the messages of an exchange, and the blocks that each rank keeps."""
        table, receiver_heads = self.value(s.part, s.side, t).table, Part("to", heads=s.heads)
        mesh, coordinates, parts = self.loops.mesh, self.coordinates, list[Copies]()
        for hop in range(mesh[s.axis]):
            target = coordinates[:, :-1].copy()
            target[:, s.axis] = (target[:, s.axis] + hop) % mesh[s.axis]
            dst = np.ravel_multi_index(tuple(target.T), mesh)
            parts.append((dst, slice_part(table, receiver_heads, t, coordinates[dst])))
        dst, blocks = (vstack_padded(column) for column in zip(*parts[1:], strict=True))
        return ir.Move(s.tensors, blocks, np.tile(self.all_ranks, len(parts) - 1), dst), parts[0][1]

    def exchange(self, s: Exchange, t: int) -> ir.Move:
        """Returns the messages of an exchange; the value includes the blocks that ranks keep."""
        (move, kept_blocks), birth = self.exchange_messages(s, t), t + 1 if s.repeats else None
        self.in_transit[s.name, s.side, birth] += [
            (self.all_ranks, kept_blocks),
            (move.dst, move.blocks),
        ]
        self.received[s.name, birth] = move
        return move

    def return_messages(self, s: Return, t: int) -> ir.Move:
        """Returns the messages of sums that go back along an axis, without empty ones."""
        value, side = self.value(Part(s.name, s.lag), s.side, t), self.plan.partition.side(s.side)
        if s.name == HELD:
            move = ir.Move(s.tensors, *scatter_blocks(value.table, side, self.coordinates, s.axis))
        elif message := self.received.get((s.name, value.born)):
            move = ir.Move(s.tensors, message.blocks, message.dst, message.src)
        else:
            raise PlanError(f"sums of {s.name} are returned, but no exchange brought {s.name}")
        for name, rank, blocks in self.earlier_sums:
            self.has_sums[name][rank[:, None], blocks] = True
        self.earlier_sums.clear()
        sums = self.has_sums[s.side][move.src[:, None], move.blocks] & (move.blocks >= 0)
        return move.select(np.asarray(sums.any(axis=1)))

    def deliver(self) -> None:
        """Makes values in transit readable."""
        for (name, side, birth), parts in self.in_transit.items():
            rank, blocks = (vstack_padded(column) for column in zip(*parts, strict=True))
            self.values[side].add(name, birth, rank, blocks)
        self.earlier_sums += self.new_sums
        self.in_transit.clear()
        self.new_sums.clear()

    @property
    def tables(self) -> dict[tuple[str, str], Ints]:
        """The blocks of own and held values, and of the latest values of exchanges."""
        names = {OWN, HELD, *self.loops.exchanges}
        entries = ((side, x) for side, values in self.values.items() for x in values.values)
        return {(side, x.name): x.table for side, x in entries if x.name in names}

    def attend(self, s: Attend, t: int) -> ir.Attend:
        """Returns the rectangles of an attend."""
        ranks = take_rows(self.all_ranks, np.flatnonzero(s.when.guard.at(t, self.coordinates)))
        q, kv = (
            hstack([self.blocks(p, side, t, ranks) for p in parts])
            for side, parts in (("q", s.q), ("kv", s.kv))
        )
        attend = ir.Attend(ranks, q, kv)
        if s.kind == "tiles" and len(attend):
            attend = without_dead_blocks(tiles(self.plan), attend)
        elif len(attend) < len(ranks):
            raise PlanError(f"step {t}: a rank attends to nothing")
        self.new_sums += [("q", attend.rank, attend.q), ("kv", attend.rank, attend.kv)]
        self.rectangles[s][t] = attend
        return attend


def find_pairs(loops: Loops, s: Send, t: int) -> tuple[Ints, Ints]:
    """Returns the senders and the receivers of a step."""
    coordinates = loops.coordinates()
    partner = find_partners(s, t, loops.mesh, coordinates)
    is_broadcast, rank = isinstance(s.hop, Root) and not s.sums, coordinates[:, -1]
    if s.when.guard.receiver and not is_broadcast:
        coordinates = coordinates[partner]
    ranks = np.flatnonzero(s.when.guard.at(t, coordinates) & (partner != rank))
    return (partner[ranks], ranks) if is_broadcast else (ranks, partner[ranks])


def find_partners(s: Send, t: int, mesh: tuple[int, ...], coordinates: Ints) -> Ints:
    """Returns the rank that each rank sends to, or the root that the rank receives from."""
    match s.hop:
        case Shift():
            partner = [coordinates[:, a] + e.at(t, coordinates) for a, e in enumerate(s.hop.by)]
        case Root():
            partner = [*coordinates[:, :-1].T]
            partner[s.hop.axis] = s.hop.root.at(t, coordinates)
    return np.ravel_multi_index(tuple(partner), mesh, mode="wrap")


def expand(loops: Loops, plan: ir.Plan) -> Expansion:
    """Expands all steps of a loop form."""
    expansion = Expansion(loops, plan)
    for t in range(loops.steps):
        expansion.step(t)
    return expansion
