"""tables(forward, backward)   plans as JAX runs them: all ranks have the same hops and use slots.

    tables    as in `ringloom.codegen.steps`, except "KEPT": {tensor: [slots of each rank]}, and
              "PASSES": {"forward": pass, "backward": pass}
    pass      {"SLOTS": {tensor: number}, "SECTIONS": [section ...],
               "MOVES": [[slots of each rank] of each step], "TILES": [[tiles of each rank] ...]}
    section   [steps, [hop ...]]                        consecutive steps with the same hops
    hop       [tensor, by, finished, width, senders]    up to `width` blocks from r to r + by
    slots     for each hop, `width` slots to send and `width` slots to fill; -1 for none
    tile      [query block, key block, slot of each tensor]    tensors in the order of "SLOTS"

Every rank keeps each tensor in one array of slots: first the blocks that it owns, then copies from
the forward pass, then other copies and sums while they are needed. The slot of a copy is free after
its last read, and the slot of a sum after it is sent.
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

Way = tuple[str, int, int]  # a tensor, the distance in ranks, and 1 for finished sums
Sent = dict[Way, dict[int, list[int]]]  # the blocks of each way in a step, by sender


def tables(forward: Plan, backward: Plan | None) -> Tables:
    """Returns the tables of both passes.

    Raises PlanError for initial copies that the forward pass does not leave.
    """
    by_rank = steps.tables(forward, backward, live_tiles)
    ranks, held = by_rank.pop("FORWARD"), by_rank.pop("KEPT")
    first = Placement(forward, [[] for _ in held])
    passes = {"forward": first.table(ranks)}
    if ranks := by_rank.pop("BACKWARD"):
        assert backward
        passes["backward"] = Placement(backward, held).table(ranks)
    return by_rank | {"KEPT": first.kept(held), "PASSES": passes}


def live_tiles(plan: Plan) -> Parts:
    """Returns a function that finds the live tiles of rectangles of query and key blocks."""
    mask = tiles(plan)

    def tiles_of(queries: Sequence[int], keys: Sequence[int]) -> Lists:
        q, kv = np.array(queries), np.array(keys)
        rows, cols = np.nonzero(mask.live(q[:, None], kv[None]))
        return [*zip(q[rows].tolist(), kv[cols].tolist(), strict=True)]

    return lambda rectangles: [tiles_of(*x) for x in rectangles]


class Slots:
    """The slots of one tensor on one rank; the first `fixed` slots are never freed."""

    def __init__(self, owned: list[int], held: list[int], most_owned: int, fixed: int) -> None:
        self.at = dict(zip(owned, range(most_owned), strict=False))
        self.at |= {block: most_owned + n for n, block in enumerate(held)}
        self.fixed = self.size = fixed
        self.free = list[int]()

    def take(self, block: int) -> int:
        """Returns the slot of a block; a block without one takes a free slot."""
        if block not in self.at:
            self.size += not self.free
            self.at[block] = heappop(self.free) if self.free else self.size - 1
        return self.at[block]

    def release(self, block: int) -> None:
        """Frees the slot of a block, unless it is fixed."""
        if self.at.get(block, 0) >= self.fixed:
            heappush(self.free, self.at.pop(block))


class Placement:
    """Assigns a slot on each rank to every block, step by step."""

    def __init__(self, plan: Plan, held: Lists) -> None:
        self.plan = plan
        self.stores = {name: [*self.initial_slots(name, held)] for name in CARRIED[plan.pass_]}

    def initial_slots(self, tensor: str, held: Lists) -> Iterator[Slots]:
        """Yields the slots of a tensor on each rank before the first step."""
        rows = self.plan.side(tensor).owned(self.plan.ranks).tolist()
        owned = [[n for n in row if n >= 0] for row in rows]
        copies = [[block for name, block in places if name == tensor] for places in held]
        most_owned = max(map(len, owned))
        for blocks in zip(owned, copies, strict=True):
            yield Slots(*blocks, most_owned, most_owned + max(map(len, copies)))

    def table(self, ranks: Lists) -> Tables:
        """Returns the table of the pass from the steps of each rank."""
        sections, moves, tiles = list[Lists](), list[Lists](), list[Lists]()
        steps_with_blocks = ((self.sent(step), step) for step in zip(*ranks, strict=True))
        for ways, group in groupby(
            steps_with_blocks, lambda x: [(way, [*by]) for way, by in x[0].items()]
        ):
            section, hops = [*group], Lists()
            for way, senders in ways:
                width = max(len(blocks) for sent, _ in section for blocks in sent[way].values())
                hops.append([*way, width, senders])
            sections.append([len(section), hops])
            for sent, step in section:
                rows = [self.row(rank, hops, sent, *tasks[2:]) for rank, tasks in enumerate(step)]
                moves.append([slots for slots, _ in rows])
                tiles.append([attended for _, attended in rows])
        sizes = {name: max(x.size for x in stores) for name, stores in self.stores.items()}
        return {"SLOTS": sizes, "SECTIONS": sections, "MOVES": moves, "TILES": tiles}

    def sent(self, step: Sequence[Lists]) -> Sent:
        """Returns the blocks of each way in a step, by sender."""
        sent = defaultdict[Way, dict[int, list[int]]](dict)
        for rank, (sends, *_) in enumerate(step):
            for to, tensor, block, finished in sends:
                way = tensor, (to - rank) % self.plan.ranks, finished
                sent[way].setdefault(rank, []).append(block)
        return dict(sorted(sent.items()))

    def row(
        self, rank: int, hops: Lists, sent: Sent, attends: Lists, drops: Lists
    ) -> tuple[Lists, Lists]:
        """Returns the slots and tiles of a rank in a step, with slots used as in the program."""
        stores = {name: by_rank[rank] for name, by_rank in self.stores.items()}
        sends = {way: sent[way].get(rank, []) for way in sent}
        sources = {way: [stores[way[0]].at.get(n, -1) for n in sends[way]] for way in sends}
        for (tensor, *_), blocks in sends.items():
            for block in blocks if TENSORS[tensor].accumulates else ():
                stores[tensor].release(block)
        attended = [self.tile(stores, *pair) for *_, pairs in attends for pair in pairs]
        for tensor, block in drops:
            stores[tensor].release(block)
        slots = Lists()
        for tensor, by, finished, width, _ in hops:
            way = tensor, by, finished
            received = sent[way].get((rank - by) % self.plan.ranks, [])
            targets = [-1 if [tensor, n] in drops else stores[tensor].take(n) for n in received]
            for numbers in (sources[way], targets):
                slots += [*numbers, *[-1] * (width - len(numbers))]
        return slots, attended

    def tile(self, stores: dict[str, Slots], q: int, kv: int) -> Lists:
        """Returns a tile, after taking slots for its sums."""
        row = [q, kv]
        for name in CARRIED[self.plan.pass_]:
            block = q if TENSORS[name].side == "q" else kv
            slots = stores[name]
            row.append(slots.take(block) if TENSORS[name].accumulates else slots.at[block])
        return row

    def kept(self, places: Lists) -> dict[str, Lists]:
        """Returns the slots of the copies for the backward pass, the same number on every rank."""
        kept = dict[str, Lists]()
        for tensor in sorted({tensor for copies in places for tensor, _ in copies}):
            pairs = zip(self.stores[tensor], places, strict=True)
            try:
                slots = [[x.at[n] for name, n in copies if name == tensor] for x, copies in pairs]
            except KeyError as block:
                raise PlanError(
                    f"the backward pass starts with {tensor} {block} on a rank where the forward"
                    " pass does not leave it"
                ) from None
            kept[tensor] = [row + [0] * (max(map(len, slots)) - len(row)) for row in slots]
        return kept
