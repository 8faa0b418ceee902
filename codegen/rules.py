"""rules   the schedules as loops: what every rank attends and sends, as formulas of rank and step.

A rule takes P = `ranks`, the blocks at home on each rank (`q`, `kv` [ranks, w], -1 is no block),
their homes, which tiles are `live` and the direction, and yields the nodes of a plan in its order.
Emitted programs contain the one rule they need, word for word; lowering runs it and compares the
rows with the plan, so a rule that does not say exactly what the plan says is never emitted.
"""

from collections.abc import Iterator

import numpy as np

from codegen.rows import (
    Attend,
    Flags,
    Held,
    Ints,
    Move,
    Rows,
    Sums,
    at_home,
    relay,
    users,
    without_dead,
)


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
    rank = np.arange(ranks)
    ahead = (rank + 1) % ranks
    rounds = [Attend(t, rank, q, kv[(rank - t) % ranks]) for t in range(ranks)]
    rounds = without_dead(rounds, live)
    adds = users(rounds, "kv", ranks, len(kv_homes))
    use, sums = at_home(adds, kv_homes), Sums(adds, 1, kv_homes)
    for t in range(ranks + backward):
        if t < ranks - 1:
            here = kv[(rank - t) % ranks]
            yield from relay(t, ("KV",), here, rank, ahead, use, kv_homes)
        if backward and t > 0:
            behind = kv[(rank - t + 1) % ranks]
            yield from sums.hand_over(t, "DKV", behind, rank, ahead)
        if t < ranks:
            yield rounds[t]
            sums.add(rounds[t], "kv")


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
    rank = np.arange(ranks)
    ahead = (rank + 1) % ranks
    travels = ("Q", "DOUT", "STATS")
    rounds = [Attend(t, rank, q[(rank - t) % ranks], kv) for t in range(ranks)]
    rounds = without_dead(rounds, live)
    adds = users(rounds, "q", ranks, len(q_homes))
    use, sums = at_home(adds, q_homes), Sums(adds, 1, q_homes)
    for t in range(ranks + 1):
        if t < ranks - 1:
            here = q[(rank - t) % ranks]
            yield from relay(t, travels, here, rank, ahead, use, q_homes)
        if t > 0:
            behind = q[(rank - t + 1) % ranks]
            yield from sums.hand_over(t, "DQ", behind, rank, ahead)
        if t < ranks:
            yield rounds[t]
            sums.add(rounds[t], "q")


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
    rank = np.arange(ranks)
    everything = np.broadcast_to(np.arange(len(kv_homes)), (ranks, len(kv_homes)))
    (attend,) = without_dead([Attend(1, rank, q, everything)], live)
    use = users([attend], "kv", ranks, len(kv_homes))
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
