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

from codegen.steps import refuse
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
    for node in plan.start:
        own = plan.partition.side(node.side).owners
        for tensor in set(node.tensors) - {"OUT"}:
            blocks = held.setdefault(tensor, [[] for _ in range(plan.ranks)])
            for block, rank in zip(*(x.tolist() for x in node.flat()), strict=True):
                if own[block] != rank and block not in blocks[rank]:
                    blocks[rank].append(block)
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


@dataclass
class Sent:
    """A hop of one step: the blocks of each sender, and for each tensor slots of each rank."""

    tensors: tuple[str, ...]
    by: int
    finished: bool
    blocks: dict[int, list[int]]
    leave: dict[str, Numbers]
    arrive: dict[str, Numbers]

    @property
    def alike(self) -> tuple[tuple[str, ...], int, bool, tuple[int, ...]]:
        """Returns the traits that hops of several steps share if they are one."""
        return self.tensors, self.by, self.finished, tuple(sorted(self.blocks))


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
        moments = [self.moment(number) for number in range(len(self.plan.steps))]
        kept = {name: self.kept(name) for name in self.keep}
        sizes = {name: max(s.size for s in stores) for name, stores in self.stores.items()}
        alike = groupby(moments, key=lambda moment: [sent.alike for sent in moment[0]])
        return Tables(sizes, kept, tuple(section([*steps]) for _, steps in alike))

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

    def moment(self, step: int) -> tuple[list[Sent], Numbers]:
        """The hops and tiles of a step, in the order in which the program does it."""
        sent = self.hops(step)
        for hop in sent:
            hop.leave |= {name: self.leave(hop, name) for name in hop.tensors}
        tiles = self.tiles(step)
        self.forget(step)
        for hop in sent:
            hop.arrive |= {name: self.arrive(hop, name, step) for name in hop.tensors}
        return sent, tiles

    def hops(self, step: int) -> list[Sent]:
        """The messages of a step, those of one distance together; STATS go where OUT could stay."""
        hops: dict[tuple[tuple[str, ...], int, bool], dict[int, list[int]]] = defaultdict(dict)
        for move in self.plan.steps[step].moves:
            alone = self.left and "DOUT" in move.tensors and "STATS" not in move.tensors
            tensors = (*move.tensors, *["STATS"] * alone)
            finished = reaches_owner(self.plan, step, move)
            rows = zip(
                *(x.tolist() for x in (move.src, move.dst, move.blocks, finished)), strict=True
            )
            for src, dst, blocks, done in rows:
                sent = hops[tensors, (dst - src) % self.plan.ranks, done].setdefault(src, [])
                sent += [block for block in blocks if block >= 0]
        return [Sent(*key, blocks, {}, {}) for key, blocks in sorted(hops.items())]

    def leave(self, hop: Sent, tensor: str) -> Numbers:
        """The slots of what is sent; sums leave theirs."""
        slots: Numbers = [[] for _ in range(self.plan.ranks)]
        for rank, blocks in hop.blocks.items():
            store = self.stores[tensor][rank]
            slots[rank] = [store.at.get(block, -1) for block in blocks]
            if TENSORS[tensor].accumulates:
                for block in blocks:
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

    def arrive(self, hop: Sent, tensor: str, step: int) -> Numbers:
        """The slots of what arrives; copies that nobody reads have none."""
        slots: Numbers = [[] for _ in range(self.plan.ranks)]
        for src, blocks in hop.blocks.items():
            rank = (src + hop.by) % self.plan.ranks
            store = self.stores[tensor][rank]
            for block in blocks:
                read = TENSORS[tensor].accumulates or self.last[tensor][rank, block] > step
                slots[rank].append(store.take(block) if read else -1)
        return slots


def section(moments: list[tuple[list[Sent], Numbers]]) -> Section:
    """Steps with the same hops, each hop as wide as its largest message."""
    hops = list[Hop]()
    moves: list[Numbers] = [[[] for _ in tiles] for _, tiles in moments]
    for sent in zip(*(sent for sent, _ in moments), strict=True):
        width = max(len(blocks) for s in sent for blocks in s.blocks.values())
        hops.append(Hop(sent[0].tensors, sent[0].by, width, sent[0].finished))
        for step, row in zip(sent, moves, strict=True):
            for slots in (x[name] for name in step.tensors for x in (step.leave, step.arrive)):
                for rank, given in enumerate(slots):
                    row[rank] += given + [-1] * (width - len(given))
    return Section(tuple(hops), moves, [tiles for _, tiles in moments])
