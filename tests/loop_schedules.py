"""Schedules that recovery was not written for: (work, ranks, pass) -> a verified plan."""

from collections.abc import Callable

import numpy as np

from planner.ir import Attend, Move, Pass, Plan, Step
from planner.layouts import by_tokens
from planner.passes.adjoint import adjoint
from planner.planning import derive
from planner.schedules import SCHEDULES
from planner.workload import Workload

Build = Callable[[Workload, int, Pass], Plan]


def stride(work: Workload, ranks: int, pass_: Pass) -> Plan:
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


def double(work: Workload, ranks: int, outer: int = 2) -> Plan:
    """Inner rings joined by an outer one, whose hop leaves a whole inner round ahead."""
    inner, part, r = ranks // outer, by_tokens(work, ranks, "zigzag"), np.arange(ranks)
    q, kv, steps = part.q.owned(ranks), part.kv.owned(ranks), []
    g, h = r // inner, r % inner
    for o, i in np.ndindex(outer, inner):
        here, moves = kv[(g - o) % outer * inner + (h - i) % inner], []
        if i < inner - 1:
            moves.append(Move(("KV",), here, r, g * inner + (h + 1) % inner))
        if i == 0 and o < outer - 1:
            moves.append(Move(("KV",), here, r, (g + 1) % outer * inner + h))
        steps.append(Step((Attend(r, q, here),), tuple(moves)))
    return Plan("double", work, ranks, part, "forward", (), (), tuple(steps))


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


def shuffled(work: Workload, ranks: int, pass_: Pass) -> Plan:
    """A ring through the ranks in no order."""
    built = SCHEDULES["ring"].build(work, ranks, pass_)
    order = np.random.default_rng(1).permutation(ranks)
    at, part, r = np.argsort(order), built.partition, np.arange(ranks)
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


def ring(work: Workload, ranks: int) -> Plan:
    """The plain ring, whose backward pass its adjoint is."""
    return SCHEDULES["ring"].build(work, ranks, "forward")


def broadcasts(work: Workload, ranks: int) -> Plan:
    """Rank t sends its keys and values to everybody in step t (RingX)."""
    part, r = by_tokens(work, ranks, "contiguous"), np.arange(ranks)
    q, kv, steps = part.q.owned(ranks), part.kv.owned(ranks), []
    for t in range(ranks + 1):
        others = r[r != t]
        attends = (Attend(r, q, kv[np.full(ranks, t - 1)]),) if t else ()
        src = np.full_like(others, t)
        moves = (Move(("KV",), kv[src], src, others),) if t < ranks else ()
        steps.append(Step(attends, moves))
    return Plan("broadcasts", work, ranks, part, "forward", (), (), tuple(steps))


def _adjoint(build: Callable[[Workload, int], Plan]) -> Build:
    def both(work: Workload, ranks: int, pass_: Pass) -> Plan:
        forward = build(work, ranks)
        return forward if pass_ == "forward" else adjoint(forward)

    return both


FOREIGN: dict[str, Build] = {
    "stride": stride,
    "halves": _adjoint(halves),
    "double": _adjoint(double),
    "fourfold": _adjoint(lambda work, ranks: double(work, ranks, 4)),
    "hypercube": _adjoint(hypercube),
    "shuffled": shuffled,
    "adjoint ring": _adjoint(ring),
    "broadcasts": _adjoint(broadcasts),
}


def foreign(name: str, work: Workload, ranks: int, pass_: Pass) -> Plan:
    """A verified plan of one of them."""
    return derive(FOREIGN[name](work, ranks, pass_))
