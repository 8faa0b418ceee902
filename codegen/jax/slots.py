"""tables(forward, backward)   plans as JAX runs them: ranks send alike, blocks are in slots.

    tables    those of `ringloom.codegen.steps`, but for "KEPT": {tensor: [slots of each rank]}, and
              "PASSES": {"forward": pass, "backward": pass}
    pass      {"SLOTS": {tensor: how many}, "SECTIONS": [section ...],
               "MOVES": [[slots of each rank] of each step], "TILES": [[tiles of each rank] ...]}
    section   [steps, [hop ...]]                        consecutive steps with the same hops
    hop       [tensor, by, finished, width, senders]    up to `width` blocks to the rank `by` on
    slots     for each hop `width` slots that leave, then `width` for what arrives; -1 is none
    tile      [query block, key block, the slot of each tensor]    as "SLOTS" follow

Every rank keeps each tensor in one array of slots: first the blocks that it owns, then what it
holds from the forward pass, then copies and sums while they are needed. A copy that nobody reads
any more, and a sum that was sent on, leave their slot to others.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby

import numpy as np

from ringloom.codegen import steps
from ringloom.codegen.steps import Lists, Parts, Tables
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import CARRIED, TENSORS, Plan

Way = tuple[str, int, int]  # a tensor, how far on its blocks go, and if sums are finished
Sent = dict[Way, dict[int, list[int]]]  # the blocks that go each way in a step, by their sender


def tables(forward: Plan, backward: Plan | None) -> Tables:
    """The tables of both passes; PlanError for initial copies that no forward pass leaves."""
    made = steps.tables(forward, backward, live)
    ranks, held = made.pop("FORWARD"), made.pop("KEPT")
    first = Placement(forward, [[] for _ in held])
    passes = {"forward": first.table(ranks)}
    if ranks := made.pop("BACKWARD"):
        assert backward
        passes["backward"] = Placement(backward, held).table(ranks)
    return made | {"KEPT": first.kept(held), "PASSES": passes}


def live(plan: Plan) -> Parts:
    """A function that gives the live tiles of rectangles of query and key blocks."""
    mask = tiles(plan)

    def of(queries: Sequence[int], keys: Sequence[int]) -> Lists:
        q, kv = np.array(queries), np.array(keys)
        rows, cols = np.nonzero(mask.live(q[:, None], kv[None]))
        return [*zip(q[rows].tolist(), kv[cols].tolist(), strict=True)]

    return lambda rectangles: [of(*x) for x in rectangles]


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
        self.stores = {name: [*self.begin(name, held)] for name in CARRIED[plan.pass_]}

    def begin(self, tensor: str, held: Lists) -> Iterator[Slots]:
        """The slots of a tensor on each rank before the first step."""
        owned = self.plan.side(tensor).owned(self.plan.ranks).tolist()
        own = [[n for n in row if n >= 0] for row in owned]
        copies = [[block for name, block in places if name == tensor] for places in held]
        owners = max(map(len, own))
        for blocks in zip(own, copies, strict=True):
            yield Slots(*blocks, owners, owners + max(map(len, copies)))

    def table(self, ranks: Lists) -> Tables:
        """The table of the pass, of the steps of each rank."""
        sections, moves, tiles = list[Lists](), list[Lists](), list[Lists]()
        every = ((self.sent(step), step) for step in zip(*ranks, strict=True))
        for ways, alike in groupby(every, lambda x: [(way, [*own]) for way, own in x[0].items()]):
            same, hops = [*alike], Lists()
            for way, senders in ways:
                width = max(len(blocks) for sent, _ in same for blocks in sent[way].values())
                hops.append([*way, width, senders])
            sections.append([len(same), hops])
            for sent, step in same:
                rows = [self.row(rank, hops, sent, *own[2:]) for rank, own in enumerate(step)]
                moves.append([slots for slots, _ in rows])
                tiles.append([attended for _, attended in rows])
        sizes = {name: max(x.size for x in stores) for name, stores in self.stores.items()}
        return {"SLOTS": sizes, "SECTIONS": sections, "MOVES": moves, "TILES": tiles}

    def sent(self, step: Sequence[Lists]) -> Sent:
        """The blocks that go each way in a step, by sender."""
        sent = defaultdict[Way, dict[int, list[int]]](dict)
        for rank, (sends, *_) in enumerate(step):
            for to, tensor, block, finished in sends:
                way = tensor, (to - rank) % self.plan.ranks, finished
                sent[way].setdefault(rank, []).append(block)
        return dict(sorted(sent.items()))

    def row(
        self, rank: int, hops: Lists, sent: Sent, attends: Lists, drops: Lists
    ) -> tuple[Lists, Lists]:
        """The slots and tiles of a rank in a step, in the order in which the program does it."""
        at = {name: stores[rank] for name, stores in self.stores.items()}
        leave = {way: sent[way].get(rank, []) for way in sent}
        left = {way: [at[way[0]].at.get(n, -1) for n in own] for way, own in leave.items()}
        for (tensor, *_), own in leave.items():
            for block in own if TENSORS[tensor].accumulates else ():
                at[tensor].leave(block)
        attended = [self.tile(at, *pair) for *_, pairs in attends for pair in pairs]
        for tensor, block in drops:
            at[tensor].leave(block)
        slots = Lists()
        for tensor, by, finished, width, _ in hops:
            way = tensor, by, finished
            came = sent[way].get((rank - by) % self.plan.ranks, [])
            taken = [-1 if [tensor, n] in drops else at[tensor].take(n) for n in came]
            for numbers in (left[way], taken):
                slots += [*numbers, *[-1] * (width - len(numbers))]
        return slots, attended

    def tile(self, at: dict[str, Slots], q: int, kv: int) -> Lists:
        """A tile, whose sums have slots from now on."""
        row = [q, kv]
        for name in CARRIED[self.plan.pass_]:
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
