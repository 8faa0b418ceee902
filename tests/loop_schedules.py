"""Schedules that recovery was not written for: (work, ranks, pass) -> a verified plan."""

from collections.abc import Callable

import numpy as np

from ringloom import Attend, Move, Plan, Plans, Step, Workload, adjoint, by_tokens, run_passes
from ringloom import plan as planned

Build = Callable[[Workload, int, str], Plan]


def stride(work: Workload, ranks: int, pass_: str) -> Plan:
    """A ring in which rank r sends to rank r + 3."""
    part, r = by_tokens(work, ranks, "contiguous"), np.arange(ranks)
    kv, steps = part.kv.owned(ranks), []
    for t in range(ranks + (pass_ == "backward")):
        here, moves = kv[(r - 3 * t) % ranks], []
        if t < ranks - 1:
            moves.append(Move(("KV",), here, r, (r + 3) % ranks))
        if pass_ == "backward" and t:
            moves.append(Move(("DKV",), kv[(r - 3 * (t - 1)) % ranks], r, (r + 3) % ranks))
        attends = (Attend(r, part.q.owned(ranks), here),) if t < ranks else ()
        steps.append(Step(attends, tuple(moves)))
    return Plan("stride", work, ranks, part, pass_, (), (), tuple(steps))


def halves(work: Workload, ranks: int) -> Plan:
    """Front pieces go around one way, back pieces the other."""
    part, r = by_tokens(work, ranks, "zigzag"), np.arange(ranks)
    q, kv, steps = part.q.owned(ranks), part.kv.owned(ranks), []
    for t in range(ranks):
        front, back = kv[(r - t) % ranks, :1], kv[(r + t) % ranks, 1:]
        moves = (
            Move(("KV",), front, r, (r + 1) % ranks),
            Move(("KV",), back, r, (r - 1) % ranks),
        )
        attends = (Attend(r, q, front), Attend(r, q, back)) if t else (Attend(r, q, kv),)
        steps.append(Step(attends, moves if t < ranks - 1 else ()))
    return Plan("halves", work, ranks, part, "forward", (), (), tuple(steps))


def hypercube(work: Workload, ranks: int) -> Plan:
    """All-gather by doubling: everything that a rank has goes to rank xor 1, 2, 4."""
    part, r = by_tokens(work, ranks, "contiguous"), np.arange(ranks)
    kv, steps, have = part.kv.owned(ranks), [], [np.arange(ranks)]
    for k in range(ranks.bit_length() - 1):
        everything = np.hstack([kv[x] for x in have])
        steps.append(Step((), (Move(("KV",), everything, r, r ^ (1 << k)),)))
        have += [x[r ^ (1 << k)] for x in have]
    attend = Attend(r, part.q.owned(ranks), np.hstack([kv[x] for x in have]))
    return Plan("hypercube", work, ranks, part, "forward", (), (), (*steps, Step((attend,), ())))


def shuffled(work: Workload, ranks: int, pass_: str) -> Plan:
    """A ring through the ranks in no order."""
    part = by_tokens(work, ranks, "contiguous")
    order = np.random.default_rng(1).permutation(ranks)
    at, r = np.argsort(order), np.arange(ranks)
    kv, steps = part.kv.owned(ranks), []
    to = order[(at + 1) % ranks]
    for t in range(ranks + (pass_ == "backward")):
        here, moves = kv[order[(at - t) % ranks]], []
        if t < ranks - 1:
            moves.append(Move(("KV",), here, r, to))
        if pass_ == "backward" and t:
            moves.append(Move(("DKV",), kv[order[(at - t + 1) % ranks]], r, to))
        attends = (Attend(r, part.q.owned(ranks), here),) if t < ranks else ()
        steps.append(Step(attends, tuple(moves)))
    return Plan("shuffled", work, ranks, part, pass_, (), (), tuple(steps))


def visits(work: Workload, ranks: int) -> Plan:
    """A ring of queries: each stays two steps with the keys of a rank; then sums go to owners."""
    part, r = by_tokens(work, ranks, "zigzag"), np.arange(ranks)
    q, kv, steps = part.q.owned(ranks), part.kv.owned(ranks), []
    for t in range(2 * ranks):
        here, ahead = q[(r - t // 2) % ranks], (r + 1) % ranks
        attend = Attend(r, here, kv[:, :1] if t % 2 == 0 else kv[:, 1:])
        moves = [Move(("Q",), here, r, ahead)] if t % 2 and t < 2 * ranks - 1 else []
        if t % 2 == 0 and t > 2:
            visitor = (r - t // 2 + 1) % ranks
            moves.append(Move(("OUT",), q[visitor], r, visitor))
        steps.append(Step((attend,), tuple(moves)))
    last = (r - ranks + 1) % ranks
    steps.append(Step((), (Move(("OUT",), q[last], r, last),)))
    return Plan("visits", work, ranks, part, "forward", (), (), tuple(steps))


def ring(work: Workload, ranks: int) -> Plan:
    """The plain ring, whose backward pass its adjoint is."""
    return planned("ring", work, ranks)


def _adjoint(build: Callable[[Workload, int], Plan]) -> Build:
    def both(work: Workload, ranks: int, pass_: str) -> Plan:
        forward = build(work, ranks)
        return forward if pass_ == "forward" else adjoint(forward)

    return both


FOREIGN: dict[str, Build] = {
    "stride": stride,
    "halves": _adjoint(halves),
    "hypercube": _adjoint(hypercube),
    "shuffled": shuffled,
    "adjoint ring": _adjoint(ring),
    "visits": _adjoint(visits),
}


def foreign(name: str, work: Workload, ranks: int, pass_: str) -> Plan:
    """A verified plan of one of them."""
    return run_passes(FOREIGN[name](work, ranks, pass_))


def foreign_pair(name: str, work: Workload, ranks: int) -> Plans:
    return Plans(foreign(name, work, ranks, "forward"), foreign(name, work, ranks, "backward"))
