"""rules   the schedules as loops: what every rank attends and sends, as formulas of rank and step.

A rule takes P = `ranks`, the blocks at home on each rank (`q`, `kv` [ranks, w], -1 is no block),
their homes, which tiles are `live` and the direction, and yields the nodes of a plan in its order.
Emitted programs contain the one rule they need, word for word; lowering runs it and compares the
rows with the plan, so a rule that does not say exactly what the plan says is never emitted.
"""

from collections.abc import Iterator

import numpy as np

from codegen.rows import Attend, Flags, Held, Ints, Move, Rows, around, rectangles


def ring(
    ranks: int,
    q: Ints,
    kv: Ints,
    q_homes: Ints,
    kv_homes: Ints,
    live: Flags,
    backward: bool,
) -> Rows:
    """Queries stay, K and V travel one rank further per step; in the backward pass their gradient
    follows one step behind."""
    rank = np.arange(ranks, dtype=np.int32)
    queries, keys = rectangles(live, q, kv)
    rows = rank * ranks + (rank - rank[:, None]) % ranks  # by step and rank
    sides = zip(queries.take(rows, axis=0), keys.take(rows, axis=0), strict=True)
    rounds = [[Attend(t, rank, *side)] for t, side in enumerate(sides)]
    left = (keys >= 0).reshape(ranks, *kv.shape).sum(axis=0)
    return around(rounds, "kv", ("KV",), "DKV" if backward else "", left, kv_homes)


def query_ring(
    ranks: int,
    q: Ints,
    kv: Ints,
    q_homes: Ints,
    kv_homes: Ints,
    live: Flags,
    backward: bool,
) -> Rows:
    """K and V stay, the query side travels one rank further per step and the gradient of the
    queries follows one step behind."""
    rank = np.arange(ranks, dtype=np.int32)
    queries, keys = rectangles(live, q, kv)
    rows = (rank - rank[:, None]) % ranks * ranks + rank  # by step and rank
    sides = zip(queries.take(rows, axis=0), keys.take(rows, axis=0), strict=True)
    rounds = [[Attend(t, rank, *side)] for t, side in enumerate(sides)]
    left = (queries >= 0).reshape(ranks, *q.shape).sum(axis=1)
    return around(rounds, "q", ("Q", "DOUT", "STATS"), "DQ", left, q_homes)


def gather(
    ranks: int,
    q: Ints,
    kv: Ints,
    q_homes: Ints,
    kv_homes: Ints,
    live: Flags,
    backward: bool,
) -> Rows:
    """Every rank gets the K and V that it uses at once and attends them in one go; in the
    backward pass the gradients go straight back."""
    rank = np.arange(ranks, dtype=np.int32)
    queries, keys = rectangles(live, q, np.arange(len(kv_homes))[None])
    attend = Attend(1, rank, queries, keys)
    use = attend.kv >= 0
    hops = [(rank + hop) % ranks for hop in range(1, ranks)]
    parts = [np.where(use[dst[:, None], kv], kv, -1) for dst in hops]
    for dst, part in zip(hops, parts, strict=True):
        yield Move(0, ("KV",), part, rank, dst)
    yield attend
    if backward:
        for dst, part in zip(hops, parts, strict=True):
            yield Move(2, ("DKV",), part, dst, rank)


def kept_gather(
    ranks: int,
    q: Ints,
    kv: Ints,
    q_homes: Ints,
    kv_homes: Ints,
    live: Flags,
    backward: bool,
) -> Rows:
    """The backward pass where the K and V gathered by the forward pass were kept."""
    for node in gather(ranks, q, kv, q_homes, kv_homes, live, backward):
        if isinstance(node, Move) and node.tensors == ("KV",):
            yield Held(node.tensors, node.blocks, node.dst)
        else:
            yield node


def helpers(
    ranks: int,
    q: Ints,
    kv: Ints,
    q_homes: Ints,
    kv_homes: Ints,
    live: Flags,
    backward: bool,
) -> Rows:
    """K and V go down the ranks; a rank whose own row has run out attends the queries of another
    and sends the result home."""
    rounds = list(helper_rounds(ranks))
    travels, result = (("Q", "DOUT", "STATS"), "DQ") if backward else (("Q",), "OUT")
    rounds = [
        (worker[some], owner[some], source[some])
        for worker, owner, source in rounds
        for some in [live[q[owner, 0], kv[source, 0]]]
    ]
    for t in range(-1, len(rounds) + 1):
        if t + 1 < len(rounds):
            worker, owner, source = rounds[t + 1]
            yield Move(t, ("KV",), kv[source], source, worker)
            yield Move(t, travels, q[owner], owner, worker)
        if t >= 1:
            worker, owner, source = rounds[t - 1]
            yield Move(t, (result,), q[owner], worker, owner)
            if backward:
                yield Move(t, ("DKV",), kv[source], worker, source)
        if 0 <= t < len(rounds):
            worker, owner, source = rounds[t]
            yield Attend(t, worker, q[owner], kv[source])


def helper_rounds(ranks: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """(worker, owner of the queries, owner of the keys) per round: tiles on and below the
    diagonal, then their mirror images above it."""
    below, last = [], ranks - 1
    for t in range(ranks // 2 + 1):
        rank = np.arange(t if 2 * t == ranks else 0, ranks)
        owner = np.where(rank < t, ranks + rank - t, rank)
        source = np.where(rank < t, rank, rank - t)
        below.append((rank, owner, source))
    yield from below
    for worker, owner, source in below[1:]:
        yield last - worker, last - owner, last - source
