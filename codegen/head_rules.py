"""head_rules   heads dealt inside groups of ranks, and a ring of the groups (Ulysses, USP)."""

import numpy as np

from codegen.rows import Attend, Flags, Ints, Move, Rows, Sums, at_home, relay, users, without_dead


def in_slices(pieces: Ints, wanted: Ints, slices: int) -> Ints:
    """Block numbers of each rank's pieces [n, w] in its wanted head slices [n, a]: [n, w * a]."""
    piece, part = pieces[:, :, None], wanted[:, None, :]
    blocks = np.where((piece >= 0) & (part >= 0), piece * slices + part, -1)
    return blocks.reshape(len(pieces), -1)


def dealt(
    ranks: int,
    q: Ints,
    kv: Ints,
    q_homes: Ints,
    kv_homes: Ints,
    live: Flags,
    backward: bool,
    q_uses: Ints,
    kv_uses: Ints,
    q_slices: int,
    kv_slices: int,
) -> Rows:
    """Each group of `len(q_uses)` ranks deals its heads out; K and V go around the ring of groups,
    their gradient one step behind; results go home. Here q and kv [ranks, w] are pieces of all
    heads, and block piece * slices + h is its head slice h."""
    group = len(q_uses)
    rings, rank = ranks // group, np.arange(ranks)
    ahead, member = (rank + group) % ranks, rank % group
    travels, result = (("Q", "DOUT", "STATS"), "DQ") if backward else (("Q",), "OUT")

    def of_group(pieces: Ints, back: int) -> Ints:
        return pieces.reshape(rings, -1)[(rank // group - back) % rings]

    def visits(t: int) -> list[Ints]:
        group_kv = of_group(kv, t)
        uses = kv_uses[member].T[:, :, None]
        return [in_slices(group_kv, use, kv_slices) for use in uses]

    queries = in_slices(of_group(q, 0), q_uses[member], q_slices)
    rounds = []
    for t in range(rings):
        parts = [Attend(1 + t, rank, queries, part) for part in visits(t)]
        rounds.append(without_dead(parts, live))
    every = [attend for attends in rounds for attend in attends]
    q_use = at_home(users(every, "q", ranks, len(q_homes)), q_homes)
    adds = users(every, "kv", ranks, len(kv_homes))
    kv_use, sums = at_home(adds, kv_homes), Sums(adds, group, kv_homes)
    peers = [(rank + hop) % group for hop in range(1, group)]
    hops = [(peer, rank - member + peer) for peer in peers]

    def wanted(pieces: Ints, uses: Ints, slices: int, dst: Ints, use: Flags) -> Ints:
        part = in_slices(pieces, uses, slices)
        return np.where(use[dst[:, None], part], part, -1)

    for peer, dst in hops:
        part = wanted(q, q_uses[peer], q_slices, dst, q_use)
        yield Move(0, travels, part, rank, dst)
    for peer, dst in hops:
        part = wanted(kv, kv_uses[peer], kv_slices, dst, kv_use)
        yield Move(0, ("KV",), part, rank, dst)
    behind = backward and rings > 1
    for t in range(rings + behind):
        if t < rings - 1:
            part = np.hstack(visits(t))
            yield from relay(1 + t, ("KV",), part, rank, ahead, kv_use, kv_homes)
        if behind and t > 0:
            part = np.hstack(visits(t - 1))
            yield from sums.hand_over(1 + t, "DKV", part, rank, ahead)
        if t < rings:
            for attend in rounds[t]:
                yield attend
                sums.add(attend, "kv")
    last = 1 + rings + behind
    for peer, dst in hops:
        part = wanted(q, q_uses[peer], q_slices, dst, q_use)
        yield Move(last, (result,), part, dst, rank)
    if backward and not behind:
        for peer, dst in hops:
            part = wanted(kv, kv_uses[peer], kv_slices, dst, adds)
            yield Move(last, ("DKV",), part, dst, rank)
