"""tables(forward, backward)   plans as the table program runs them: static messages, slots, tiles.

    tables  ::= Tables(sizes, kept, sections)       of one pass
    section ::= Section(hops, made, rows)           consecutive steps with the same hops
    hop     ::= Hop(tensors, by, width, finished)     one ppermute of up to `width` blocks
    row     ::= per hop and tensor `width` slots that leave, then those for what arrives; tiles
    tile    ::= q block, kv block, the slot of each tensor that an attend reads or adds to

Every device keeps each tensor in one array of slots: first the blocks that it owns, then what it
holds from the forward pass, then copies and sums while they are needed. A copy that nobody reads
any more, and a sum that was sent on, leave their slot to others. -1 is no slot: it is read as
nothing and never written.

Where the forward pass leaves OUT for the backward pass, STATS travel with DOUT instead: two numbers
per token and head, and nobody has to keep OUT.
"""

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

import numpy as np

from codegen.steps import kept, refuse
from planner.analysis.liveness import lifetimes
from planner.analysis.messages import reaches_owner
from planner.analysis.tiles import tiles
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, INPUTS, TENSORS, Plan

Numbers = list[list[int]]  # numbers of each rank, as many as there are
FOREVER = 1 << 30
COLUMNS = {
    "forward": ("Q", "KV", "OUT"),
    "backward": ("Q", "DOUT", "STATS", "KV", "DQ", "DKV"),
}  # of a tile, behind its two blocks
Keep = dict[str, list[list[int]]]  # tensor -> for each rank the blocks that it holds
Blocks = dict[int, list[int]]  # of each sender
Route = tuple[tuple[str, ...], int, bool]  # tensors, how far they go, and if sums are finished
Messages = dict[Route, Blocks]  # of a step, those of one route together


class Hop(NamedTuple):
    """Ranks send up to `width` blocks of every tensor to the rank `by` further on."""

    tensors: tuple[str, ...]
    by: int
    width: int
    finished: bool  # sums to which nothing will be added


@dataclass(frozen=True)
class Section:
    """Consecutive steps with the same hops: slots that move, and tiles, of each step and rank."""

    hops: tuple[Hop, ...]
    moves: list[Numbers]
    tiles: list[Numbers]


@dataclass(frozen=True)
class Tables:
    """One pass: slots of each tensor, those kept for the backward pass [ranks, n], sections."""

    sizes: dict[str, int]
    kept: dict[str, Numbers]
    sections: tuple[Section, ...]


def tables(forward: Plan, backward: Plan | None) -> tuple[Tables, ...]:
    """The tables of each pass; PlanError for initial copies that no forward pass leaves."""
    refuse(forward, backward)
    held = held_by(backward) if backward else {}
    plans = [(forward, {}, held), *([(backward, held, {})] if backward else [])]
    return tuple(Placement(*plan).tables() for plan in plans)


def held_by(plan: Plan) -> Keep:
    """Returns the blocks that each rank holds from the start beside its own."""
    held: Keep = {}
    for rank, copies in enumerate(kept(plan, plan.ranks)):
        for tensor, block in copies:
            if tensor != "OUT" and plan.side(tensor).owners[block] != rank:
                held.setdefault(tensor, [[] for _ in range(plan.ranks)])[rank].append(block)
    return held


# ---- slots


class Store:
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
    """Walks through the steps of a plan and gives every block a slot.

    `last`: the last step that reads an input, of each rank and block.
    """

    def __init__(self, plan: Plan, held: Keep, keep: Keep) -> None:
        self.plan, self.keep, self.live = plan, keep, tiles(plan)
        self.left = any("OUT" in node.tensors for node in plan.start)
        instead = {"STATS": "DOUT"} if self.left else {}
        self.last = {n: lifetimes(plan, instead.get(n, n))[1] for n in INPUTS[plan.pass_]}
        for tensor, ranks in keep.items():
            for rank, blocks in enumerate(ranks):
                self.last[tensor][rank, blocks] = FOREVER
        names = (*INPUTS[plan.pass_], *ACCUMULATORS[plan.pass_])
        self.stores = {name: self.start(name, held.get(name)) for name in names}

    def start(self, tensor: str, held: list[list[int]] | None) -> list[Store]:
        """The slots of a tensor on each rank before the first step."""
        table = self.plan.side(tensor).owned(self.plan.ranks).tolist()
        own = [[block for block in row if block >= 0] for row in table]
        held = held or [[] for _ in own]
        owners = len(table[0])
        fixed = owners + max(map(len, held))
        return [Store(*blocks, owners, fixed) for blocks in zip(own, held, strict=True)]

    def tables(self) -> Tables:
        """The tables of the pass."""
        messages = enumerate(map(self.messages, range(len(self.plan.steps))))
        alike = groupby(messages, key=lambda m: [(key, *sorted(m[1][key])) for key in m[1]])
        sections = tuple(self.section(dict(steps)) for _, steps in alike)
        kept = {name: self.kept(name) for name in self.keep}
        sizes = {name: max(s.size for s in stores) for name, stores in self.stores.items()}
        return Tables(sizes, kept, sections)

    def kept(self, tensor: str) -> Numbers:
        """The slots of what the backward pass asks for."""
        stores = zip(self.stores[tensor], self.keep[tensor], strict=True)
        try:
            return [[store.at[block] for block in blocks] for store, blocks in stores]
        except KeyError as lost:
            raise PlanError(
                f"the backward pass starts with {tensor} {lost} on a rank where the forward pass"
                " does not leave it"
            ) from None

    def section(self, steps: dict[int, Messages]) -> Section:
        """Steps with the same hops, each hop as wide as its largest message."""
        hops = dict[Route, Hop]()
        for route in next(iter(steps.values())):
            width = max(len(blocks) for sent in steps.values() for blocks in sent[route].values())
            hops[route] = Hop(*route[:2], width, route[2])
        rows = (self.row(step, [(hops[x], sent[x]) for x in hops]) for step, sent in steps.items())
        moves, tiles = zip(*rows, strict=True)
        return Section((*hops.values(),), [*moves], [*tiles])

    def row(self, step: int, sent: list[tuple[Hop, Blocks]]) -> tuple[Numbers, Numbers]:
        """The slots and tiles of a step, in the order in which the program does it."""
        each = [(name, hop, blocks) for hop, blocks in sent for name in hop.tensors]
        left = [self.leave(*message) for message in each]
        tiles = self.tiles(step)
        self.forget(step)
        came = [self.arrive(*message, step) for message in each]
        both = [slots for pair in zip(left, came, strict=True) for slots in pair]
        ranks = range(self.plan.ranks)
        return [[n for slots in both for n in slots[rank]] for rank in ranks], tiles

    def messages(self, step: int) -> Messages:
        """The blocks that ranks send in a step; STATS go where OUT could stay."""
        messages: Messages = defaultdict(dict)
        for move in self.plan.steps[step].moves:
            alone = self.left and "DOUT" in move.tensors and "STATS" not in move.tensors
            tensors = (*move.tensors, *["STATS"] * alone)
            finished = reaches_owner(self.plan, step, move)
            rows = zip(
                *(x.tolist() for x in (move.src, move.dst, move.blocks, finished)), strict=True
            )
            for src, dst, blocks, done in rows:
                sent = messages[tensors, (dst - src) % self.plan.ranks, done].setdefault(src, [])
                sent += [block for block in blocks if block >= 0]
        return dict(sorted(messages.items()))

    def leave(self, tensor: str, hop: Hop, sent: Blocks) -> Numbers:
        """The slots of what is sent; sums leave theirs."""
        slots = [[-1] * hop.width for _ in range(self.plan.ranks)]
        for rank, blocks in sent.items():
            store = self.stores[tensor][rank]
            slots[rank][: len(blocks)] = [store.at.get(block, -1) for block in blocks]
            for block in blocks if TENSORS[tensor].accumulates else ():
                store.leave(block)
        return slots

    def tiles(self, step: int) -> Numbers:
        """The tiles that each rank attends in a step, as rows of numbers."""
        made: Numbers = [[] for _ in range(self.plan.ranks)]
        for node in self.plan.steps[step].attends:
            row, a, b = np.nonzero(self.live.live(node.q[:, :, None], node.kv[:, None, :]))
            pairs = node.rank[row], node.q[row, a], node.kv[row, b]
            for rank, q, kv in zip(*(x.tolist() for x in pairs), strict=True):
                made[rank] += [q, kv]
                for name in COLUMNS[self.plan.pass_]:
                    tensor, store = TENSORS[name], self.stores[name][rank]
                    block = q if tensor.side == "q" else kv
                    made[rank].append(store.take(block) if tensor.accumulates else store.at[block])
        return made

    def forget(self, step: int) -> None:
        """Give away the slots of copies that are not read after this step."""
        for name in INPUTS[self.plan.pass_]:
            for rank, store in enumerate(self.stores[name]):
                for block in [b for b in store.at if self.last[name][rank, b] <= step]:
                    store.leave(block)

    def arrive(self, tensor: str, hop: Hop, sent: Blocks, step: int) -> Numbers:
        """The slots of what arrives; copies that nobody reads have none."""
        slots = [[-1] * hop.width for _ in range(self.plan.ranks)]
        for src, blocks in sent.items():
            rank = (src + hop.by) % self.plan.ranks
            store, last = self.stores[tensor][rank], self.last.get(tensor)
            for n, block in enumerate(blocks):
                if last is None or last[rank, block] > step:  # sums, and copies that are read
                    slots[rank][n] = store.take(block)
        return slots
