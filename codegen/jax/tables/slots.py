"""tables(forward, backward)   plans as JAX runs them: ranks send alike, blocks are in slots.

    tables    those of `codegen.steps`, but for "KEPT": {tensor: [slots of each rank]}, and passes
    pass      {"SLOTS": {tensor: how many}, "SECTIONS": [section ...],
               "MOVES": [[slots of each rank] of each step], "TILES": [[tiles of each rank] ...]}
    section   [steps, [hop ...]]                        consecutive steps with the same hops
    hop       [tensor, by, finished, width, senders]    up to `width` blocks to the rank `by` on
    slots     for each hop `width` slots that leave, then `width` for what arrives; -1 is none
    tile      [query block, key block, the slot of each tensor that an attend reads or adds to]

Every rank keeps each tensor in one array of slots: first the blocks that it owns, then what it
holds from the forward pass, then copies and sums while they are needed. A copy that nobody reads
any more, and a sum that was sent on, leave their slot to others.

Where the forward pass leaves OUT for the backward pass, STATS travel with DOUT instead: two numbers
per token and head, and nobody has to keep OUT.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import groupby

import numpy as np

from codegen import steps
from codegen.steps import Lists, Parts, Tables
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, INPUTS, TENSORS, Move, Plan, Step
from planner.partitions import Side

COLUMNS = {
    "forward": ("Q", "KV", "OUT"),
    "backward": ("Q", "DOUT", "STATS", "KV", "DQ", "DKV"),
}  # of a tile, behind its two blocks
Way = tuple[str, int, int]  # a tensor, how far on its blocks go, and if sums are finished


def tables(forward: Plan, backward: Plan | None) -> Tables:
    """The tables of both passes; PlanError for initial copies that no forward pass leaves."""
    backward = backward and with_statistics(backward)
    made = steps.tables(forward, backward, live)
    first = Placement(forward, [[] for _ in made["KEPT"]])
    passes: Tables = {"FORWARD": first.table(made["FORWARD"]), "KEPT": first.kept(made["KEPT"])}
    if backward:
        passes["BACKWARD"] = Placement(backward, made["KEPT"]).table(made["BACKWARD"])
    return made | passes


def with_statistics(plan: Plan) -> Plan:
    """The plan with STATS beside DOUT in messages, instead of OUT on other ranks."""
    if not any("OUT" in held.tensors for held in plan.start):
        return plan
    others = ((held, tuple(t for t in held.tensors if t != "OUT")) for held in plan.start)
    start = tuple(replace(held, tensors=left) for held, left in others if left)

    def both(move: Move) -> Move:
        alone = "DOUT" in move.tensors and "STATS" not in move.tensors
        return replace(move, tensors=(*move.tensors, "STATS")) if alone else move

    changed = (Step(step.attends, tuple(map(both, step.moves))) for step in plan.steps)
    return replace(plan, start=start, steps=tuple(changed))


def live(plan: Plan) -> Parts:
    """A function that gives the live tiles of some query and key blocks."""
    mask = tiles(plan)

    def of(queries: Sequence[int], keys: Sequence[int]) -> Lists:
        q, kv = np.array(queries), np.array(keys)
        rows, cols = np.nonzero(mask.live(q[:, None], kv[None]))
        return [*zip(q[rows].tolist(), kv[cols].tolist(), strict=True)]

    return of


class Slots:
    """The slots of one tensor on one rank: `fixed` ones first, which are never given away."""

    def __init__(self, own: list[int], held: list[int], owners: int, fixed: int) -> None:
        self.at = dict(zip(own, range(owners), strict=False))
        self.at |= {block: owners + n for n, block in enumerate(held)}
        self.fixed = self.size = fixed
        self.free = list[int]()

    def take(self, block: int) -> int:
        """The slot of a block; a free one if it has none."""
        if block not in self.at:
            self.size += not self.free
            self.at[block] = heappop(self.free) if self.free else self.size - 1
        return self.at[block]

    def leave(self, block: int) -> None:
        """Give a slot away, unless it is a fixed one."""
        if self.at.get(block, 0) >= self.fixed:
            heappush(self.free, self.at.pop(block))


class Placement:
    """Walks through the steps of a plan and gives every block a slot, on each rank."""

    def __init__(self, plan: Plan, held: Lists) -> None:
        self.plan = plan
        names = (*INPUTS[plan.pass_], *ACCUMULATORS[plan.pass_])
        self.stores = {name: [*self.begin(name, plan.side(name), held)] for name in names}

    def begin(self, tensor: str, side: Side, held: Lists) -> Iterator[Slots]:
        """The slots of a tensor on each rank before the first step."""
        own = [[n for n in row if n >= 0] for row in side.owned(self.plan.ranks).tolist()]
        copies = [[block for name, block in places if name == tensor] for places in held]
        owners = max(map(len, own))
        for blocks in zip(own, copies, strict=True):
            yield Slots(*blocks, owners, owners + max(map(len, copies)))

    def table(self, ranks: Lists) -> Tables:
        """The table of the pass, of the steps of each rank."""
        sections, moves, tiles = list[Lists](), list[Lists](), list[Lists]()
        for senders, alike in groupby(zip(*ranks, strict=True), self.senders):
            same = [*alike]
            hops = [[*way, self.width(way, same), who] for way, who in senders.items()]
            sections.append([len(same), hops])
            for step in same:
                rows = [self.row(rank, hops, *own) for rank, own in enumerate(step)]
                moves.append([slots for slots, _ in rows])
                tiles.append([attended for _, attended in rows])
        sizes = {name: max(x.size for x in stores) for name, stores in self.stores.items()}
        return {"SLOTS": sizes, "SECTIONS": sections, "MOVES": moves, "TILES": tiles}

    def senders(self, step: Sequence[Lists]) -> dict[Way, list[int]]:
        """The ways of a step, and the ranks that send on each."""
        ranks = defaultdict[Way, list[int]](list)
        for rank, (sends, *_) in enumerate(step):
            for way in self.ways(rank, sends, 1):
                ranks[way].append(rank)
        return dict(sorted(ranks.items()))

    def width(self, way: Way, same: Sequence[Sequence[Lists]]) -> int:
        """The most blocks that a rank sends on a way in one of these steps."""
        sent = (self.ways(r, sends, 1) for step in same for r, (sends, *_) in enumerate(step))
        return max(len(blocks.get(way, ())) for blocks in sent)

    def ways(self, rank: int, messages: Lists, sign: int) -> dict[Way, list[int]]:
        """The blocks of messages by way; sign 1: from this rank, -1: to it."""
        blocks = defaultdict[Way, list[int]](list)
        for end, tensor, block, finished in messages:
            blocks[tensor, sign * (end - rank) % self.plan.ranks, finished].append(block)
        return blocks

    def row(
        self, rank: int, hops: Lists, sends: Lists, receives: Lists, attends: Lists, drops: Lists
    ) -> tuple[Lists, Lists]:
        """The slots and tiles of a rank in a step, in the order in which the program does it."""
        at = {name: stores[rank] for name, stores in self.stores.items()}
        sent, came = self.ways(rank, sends, 1), self.ways(rank, receives, -1)
        left = {way: [at[way[0]].at.get(n, -1) for n in blocks] for way, blocks in sent.items()}
        for _, tensor, block, _ in sends:
            if TENSORS[tensor].accumulates:
                at[tensor].leave(block)
        attended = [self.tile(at, *pair) for *_, pairs in attends for pair in pairs]
        for tensor, block in drops:
            at[tensor].leave(block)
        slots = Lists()
        for *way, width, _ in hops:
            tensor, arrived = way[0], came.get((*way,), [])
            taken = [-1 if [tensor, n] in drops else at[tensor].take(n) for n in arrived]
            for numbers in (left.get((*way,), []), taken):
                slots += [*numbers, *[-1] * (width - len(numbers))]
        return slots, attended

    def tile(self, at: dict[str, Slots], q: int, kv: int) -> Lists:
        """A tile, whose sums have slots from now on."""
        row = [q, kv]
        for name in COLUMNS[self.plan.pass_]:
            block = q if TENSORS[name].side == "q" else kv
            row.append(at[name].take(block) if TENSORS[name].accumulates else at[name].at[block])
        return row

    def kept(self, places: Lists) -> dict[str, Lists]:
        """The slots of what the backward pass asks for, of as many on every rank."""
        kept = dict[str, Lists]()
        for tensor in sorted({tensor for copies in places for tensor, _ in copies}):
            both = zip(self.stores[tensor], places, strict=True)
            try:
                slots = [[x.at[n] for name, n in copies if name == tensor] for x, copies in both]
            except KeyError as lost:
                raise PlanError(
                    f"the backward pass starts with {tensor} {lost} on a rank where the forward"
                    " pass does not leave it"
                ) from None
            kept[tensor] = [row + [0] * (max(map(len, slots)) - len(row)) for row in slots]
        return kept
