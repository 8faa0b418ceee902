"""Ulysses and USP: heads are dealt inside a group of ranks, a KV ring joins the groups.

    step 0        in each group  q[c, h], kv[c, h] -> the group's rank h        (all-to-all)
    step 1 + t    rank (g, h) attends all its group's q[., h] x kv of group g - t, slice h;
                  that kv travels on to rank (g + 1, h), in the backward pass dkv one step behind
    last step     out[c, h], dq[c, h], dkv[c, h] -> the home of piece c          (all-to-all)
    backward      q, kv and out of step 0 and the last are there still: dout alone is dealt

Rank (g, h) is g * U + h for U ranks per group; one group is DeepSpeed-Ulysses. Head slices need
divide nothing: KV heads are cut wherever a query slice begins or ends. Layouts even out the ring
of groups; where there is one group, any does, and DeepSpeed-Ulysses leaves tokens in their order.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.ir import QUERY_SIDE, Attend, Held, Move, Pass, Plan, Step, result
from planner.layouts import Chunks, by_heads, chunks_of, cut
from planner.partitions import Ints, Partition, Side
from planner.workload import Workload

NODE = 8  # ranks that usually share the fast links, where an all-to-all is cheap


def usp(
    work: Workload,
    ranks: int,
    pass_: Pass,
    *,
    ulysses: int = 0,
    ring: int = 0,
    layout: str = "zigzag",
    keep: int = 1,
) -> Plan:
    """Heads are dealt in groups of `ulysses` ranks, KV goes around `ring` groups (USP).

    keep=1: the backward pass reuses what the forward pass dealt, and OUT where it was made.
    """
    ulysses, ring = degrees(work, ranks, ulysses, ring)
    q_slices, kv_slices = head_slices(work, ulysses)
    q = Dealt(work.seq, ulysses, ring, layout, q_slices, [[h] for h in range(len(q_slices))])
    uses = [
        [a for a, kv in enumerate(kv_slices) if _meet(slice_, kv, work.group)]
        for slice_ in q_slices
    ]
    kv = Dealt(work.kv_seq, ulysses, ring, layout, kv_slices, uses, like=q)
    deal, start = q.deal(QUERY_SIDE[pass_]) + kv.deal(("KV",)), tuple[Held, ...]()
    if keep and pass_ == "backward":
        deal, start = q.deal(("DOUT",)), (*q.dealt("Q"), *q.dealt("OUT"), *kv.dealt("KV"))
    home = q.deal((result(pass_),), back=True)
    if pass_ == "backward":
        home += kv.deal(("DKV",), back=True)
    steps = (Step((), deal), *_ring(q, kv, pass_), Step((), home))
    name, partition = "ulysses" if ring == 1 else "usp", Partition(q.side, kv.side)
    return Plan(name, work, ranks, partition, pass_, start, (), tuple(filter(None, steps)))


def degrees(work: Workload, ranks: int, ulysses: int, ring: int) -> tuple[int, int]:
    """Both degrees of ranks = ulysses x ring; a degree of 0 follows from the other or is chosen."""
    if not ulysses and not ring:
        most = min(work.kv_heads, NODE, max(1, ranks - 1))
        ulysses = max(u for u in range(1, most + 1) if ranks % u == 0)
    ulysses, ring = ulysses or ranks // max(ring, 1), ring or ranks // max(ulysses, 1)
    if ulysses < 1 or ring < 1 or ulysses * ring != ranks:
        raise PlanError(f"ulysses={ulysses} x ring={ring} is {ulysses * ring}, not {ranks} ranks")
    return ulysses, ring


def head_slices(work: Workload, ulysses: int) -> tuple[list[range], list[range]]:
    """Query slices, one per rank of a group, and KV slices cut wherever one of those begins."""
    q = [s for s in cut(work.heads, ulysses) if len(s)]
    edges = {s.start // work.group for s in q} | {-(-s.stop // work.group) for s in q}
    ends = sorted(edges)
    return q, [range(a, b) for a, b in pairwise(ends)]


def _meet(q: range, kv: range, group: int) -> bool:
    return max(q.start, kv.start * group) < min(q.stop, kv.stop * group)


def dealt(tokens: int, ulysses: int, ring: int, layout: str) -> Chunks:
    """Each group's pieces of the layout, cut once more between the ranks of the group."""
    found = Chunks()
    for positions, group in chunks_of(layout, tokens, ring):
        cuts = [cut(len(part), ulysses) for part in positions]
        for rank in range(ulysses):
            own = zip(positions, (pieces[rank] for pieces in cuts), strict=True)
            pieces = tuple(part[c.start : c.stop] for part, c in own)
            found.append((pieces, group * ulysses + rank))
    return found


class Dealt:
    """One side: where its blocks live and which slices each rank of a group works on."""

    def __init__(
        self,
        tokens: int,
        ulysses: int,
        ring: int,
        layout: str,
        slices: list[range],
        uses: list[list[int]],
        like: "Dealt | None" = None,
    ) -> None:
        self.ulysses, self.ring, self.slices = ulysses, ring, len(slices)
        self.rank, self.cut = np.arange(ulysses * ring, dtype=np.int32), (tokens, slices)
        self.side: Side
        self.own: Ints  # pieces at home on each rank
        if like and like.cut == self.cut:  # what is found out about one side holds for the other
            self.side, self.own = like.side, like.own
        else:
            chunks = dealt(tokens, ulysses, ring, layout)
            self.side = by_heads(chunks, slices)
            whole = by_heads(chunks, [range(1)])
            self.own = whole.owned(len(self.rank))
        self.group = self.own.reshape(ring, -1)  # pieces of each group
        self.uses = np.full((ulysses, max(map(len, uses))), -1, np.int32)
        for rank, wanted in enumerate(uses):
            self.uses[rank, : len(wanted)] = wanted
        same = like and like.side is self.side and np.array_equal(like.uses, self.uses)
        self.parcels: list[tuple[Ints, Ints]]
        self.parcels = like.parcels if like and same else self._parcels()

    def _parcels(self) -> list[tuple[Ints, Ints]]:
        """Hop by hop: which member of its group each rank looks at, and what goes there."""
        peers = [(self.rank + hop) % self.ulysses for hop in range(1, self.ulysses)]
        return [(peer, self.blocks(self.own, self.uses[peer])) for peer in peers]

    def blocks(self, pieces: Ints, wanted: Ints) -> Ints:
        """Block numbers of each rank's pieces [n, w] in its wanted slices [n, a]: [n, w * a]."""
        piece, slice_ = pieces[:, :, None], wanted[:, None, :]
        there = (piece >= 0) & (slice_ >= 0)
        block = np.where(there, piece * self.slices + slice_, np.int32(-1))
        return block.reshape(len(pieces), -1)

    def deal(self, tensors: tuple[str, ...], back: bool = False) -> tuple[Move, ...]:
        """The all-to-all in each group, hop by hop: pieces go to the ranks that use a slice."""
        moves = []
        for peer, blocks in self.parcels:
            other = self.rank - self.rank % self.ulysses + peer
            src, dst = (other, self.rank) if back else (self.rank, other)
            moves.append(Move(tensors, blocks, src, dst))
        return tuple(moves)

    def dealt(self, tensor: str) -> tuple[Held, ...]:
        """What the all-to-all of the forward pass brought to each rank; OUT was made there."""
        return tuple(
            Held((tensor,), blocks, self.rank - self.rank % self.ulysses + peer)
            for peer, blocks in self.parcels
        )

    def of_group(self, back: int) -> NDArray[np.intp]:
        """What each rank works on of the group `back` places before its own: [ranks, a, w]."""
        group = self.group[(self.rank // self.ulysses - back) % self.ring]
        uses = self.uses[self.rank % self.ulysses]
        return np.stack([self.blocks(group, u[:, None]) for u in uses.T], axis=1)


def _ring(q: Dealt, kv: Dealt, pass_: Pass) -> list[Step]:
    """The ring of groups; DKV one step behind its KV."""
    rank, ranks = q.rank, len(q.rank)
    following, queries = (rank + q.ulysses) % ranks, q.of_group(0)[:, 0]
    behind, steps = pass_ == "backward" and q.ring > 1, []
    for t in range(q.ring + behind):
        here, moves = kv.of_group(t), []
        if t < q.ring - 1:
            moves.append(Move(("KV",), here.reshape(ranks, -1), rank, following))
        if behind and t:
            moves.append(Move(("DKV",), kv.of_group(t - 1).reshape(ranks, -1), rank, following))
        attends = (
            [Attend(rank, queries, part) for part in here.swapaxes(0, 1)] if t < q.ring else []
        )
        steps.append(Step(tuple(attends), tuple(moves)))
    return steps
