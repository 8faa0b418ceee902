"""head_rules   heads dealt inside groups of ranks, and a ring of the groups (Ulysses, USP)."""

import numpy as np

from codegen.rows import Attend, Flags, Ints, Move, Rows, around, rectangles


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
    their gradient one step behind; results go home. Pieces q and kv [ranks, w], their homes and
    which are `live` are those of all heads; block piece * slices + h is head slice h of a piece."""
    group = len(q_uses)
    rings, rank = ranks // group, np.arange(ranks)
    mine, member = rank // group, rank % group
    travels, result = (("Q", "DOUT", "STATS"), "DQ") if backward else (("Q",), "OUT")
    queries, keys = rectangles(live, q.reshape(rings, -1), kv.reshape(rings, -1))
    rounds: list[list[Attend]] = [[] for _ in range(rings)]
    for t, attends in enumerate(rounds):
        row = mine * rings + (mine - t) % rings
        some_q, some_kv = queries.take(row, 0), keys.take(row, 0)
        for use in kv_uses[member].T[:, :, None]:
            part = in_slices(some_q, np.where(use < 0, -1, q_uses[member]), q_slices)
            kv_part = in_slices(some_kv, use, kv_slices)
            attends.append(Attend(1 + t, rank, part, kv_part))
    q = np.where(np.take(live.any(axis=1), q), q, -1)
    kv = keys[:: rings + 1].reshape(ranks, -1)  # what groups use of their own
    peers = [(rank + hop) % group for hop in range(1, group)]
    hops = [(peer, rank - member + peer) for peer in peers]
    for peer, dst in hops:
        yield Move(0, travels, in_slices(q, q_uses[peer], q_slices), rank, dst)
    for peer, dst in hops:
        yield Move(0, ("KV",), in_slices(kv, kv_uses[peer], kv_slices), rank, dst)
    adds = "DKV" if backward and rings > 1 else ""
    left = (keys >= 0).reshape(rings, rings, -1).sum(axis=0)[mine]
    left, homes = np.tile(left, kv_uses.shape[1]), np.repeat(kv_homes, kv_slices)
    yield from around(rounds, "kv", ("KV",), adds, left, homes, group)
    last = 1 + rings + bool(adds)
    for peer, dst in hops:
        yield Move(last, (result,), in_slices(q, q_uses[peer], q_slices), dst, rank)
    for peer, dst in hops if backward and not adds else ():
        yield Move(last, ("DKV",), in_slices(kv, kv_uses[peer], kv_slices), dst, rank)
