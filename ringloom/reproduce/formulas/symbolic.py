"""Costs of each schedule in symbols, summed over its own loop, and where one overtakes another.

Causal, P ranks of c tokens (n = P c), h query heads and g KV heads of d elements, e bytes of an
input and w bytes of a partial result; for USP, P = U R. What plans count, `formula_counts` tells.
"""

from dataclasses import dataclass
from functools import cache

import sympy

from planner.errors import RingloomError
from planner.ir import TENSORS
from ringloom.reproduce.formulas.loops import (
    LOOPS,
    Expr,
    Loop,
    P,
    Parts,
    R,
    Sent,
    U,
    c,
    d,
    g,
    h,
    rows,
    t,
)

e, w = sympy.symbols("e w", positive=True, integer=True)
n = P * c
SYMBOLS = {
    "P": "ranks",
    "c": "tokens per rank, n = P c",
    "h": "query heads",
    "g": "KV heads",
    "d": "elements of a head",
    "e": "bytes of an input's element",
    "w": "bytes of a partial result's element",
    "U": "ranks of a group (usp: P = U R)",
    "R": "groups (usp)",
}


@dataclass(frozen=True)
class Formulas:
    """One schedule under a causal mask; sympy expressions.

    Pairs are (query, key, head) triples of one batch row; traffic is what a rank sends on average;
    slots are copies away from home, in blocks of c tokens with all heads.
    """

    schedule: str
    about: str
    rounds: Expr
    pairs: Expr  # of the busiest rank of each round, summed
    all_pairs: Expr  # of all ranks
    idle_cells: Expr  # idle (rank, round) places over P x rounds
    idle_cells_of_square: Expr  # the same over P^2, as DistFlashAttn prints
    idle_areas: Expr  # 1 - all pairs / (P x pairs)
    forward_elements: Expr
    backward_elements: Expr
    forward_bytes: Expr
    backward_bytes: Expr
    slots_kv: Expr
    slots_q: Expr
    speedup: Expr  # over one rank, counting pairs
    speedup_over_ring: Expr

    def expressions(self) -> dict[str, Expr]:
        """The formulas by name."""
        return {k: v for k, v in vars(self).items() if k not in ("schedule", "about")}


def parities(expr: Expr) -> dict[str, Expr]:
    """An expression that rounds P/2 up or down, for even and for odd P; any other as it is."""
    if not expr.has(sympy.floor, sympy.ceiling):
        return {"": expr}
    down, up = sympy.floor(P / 2), sympy.ceiling(P / 2)
    halves = {"even P": (P / 2, P / 2), "odd P": ((P - 1) / 2, (P + 1) / 2)}
    return {
        name: sympy.factor(sympy.simplify(expr.subs({down: low, up: high})))
        for name, (low, high) in halves.items()
    }


def summed(parts: Parts) -> Expr:
    """The sum over t of every part of a loop."""
    total = sum(sympy.summation(part.each, (t, part.first, part.last)) for part in parts)
    return sympy.simplify(total)


def _width(tensor: str, in_bytes: bool) -> Expr:
    """Elements or bytes of one token of a tensor, all its heads."""
    kind = TENSORS[tensor]
    heads = h if kind.side == "q" else g
    size = (w if kind.wide else e) if in_bytes else 1
    return heads * size * (len(kind.vectors) * d + kind.scalars)


def _traffic(sent: Sent, finished: Sent, ranks: Expr, in_bytes: bool) -> Expr:
    """Returns what a rank sends; vectors of finished results take e bytes an element, not w."""
    each = sum(summed(parts) * c * _width(name, in_bytes) for name, parts in sent.items())
    for name, parts in finished.items() if in_bytes else ():
        kind = TENSORS[name]
        heads = h if kind.side == "q" else g
        each -= summed(parts) * c * heads * len(kind.vectors) * d * (w - e)
    return sympy.factor(each / ranks)


@cache
def formulas(schedule: str) -> Formulas:
    """The formulas of a schedule. Raises RingloomError for one that has none."""
    if schedule not in LOOPS:
        raise RingloomError(f"no formulas of {schedule!r}: choose one of {', '.join(LOOPS)}")
    loop, ranks = LOOPS[schedule](), U * R if schedule == "usp" else P
    rounds, busy = summed(loop.rounds), summed(loop.busy)
    pairs, total = (summed(parts) * loop.shares * h for parts in (loop.busiest, loop.total))
    idle = ranks * rounds - busy
    forward, backward = (
        [_traffic(sent, done, ranks, in_bytes) for in_bytes in (False, True)]
        for sent, done in ((loop.forward, _of(loop, "OUT")), (loop.backward, _of(loop, "DQ DKV")))
    )
    return Formulas(
        schedule=schedule,
        about=loop.about,
        rounds=rounds,
        pairs=sympy.factor(pairs),
        all_pairs=sympy.factor(total),
        idle_cells=sympy.simplify(idle / (ranks * rounds)),
        idle_cells_of_square=sympy.simplify(idle / ranks**2),
        idle_areas=sympy.simplify(1 - total / (ranks * pairs)),
        forward_elements=forward[0],
        backward_elements=backward[0],
        forward_bytes=forward[1],
        backward_bytes=backward[1],
        slots_kv=summed(loop.received.get("KV", ())),
        slots_q=summed(loop.received.get("Q", ())),
        speedup=sympy.simplify(total / pairs),
        speedup_over_ring=_over_ring(pairs, ranks),
    )


def _of(loop: Loop, names: str) -> Sent:
    return {name: loop.finished[name] for name in names.split() if name in loop.finished}


def _over_ring(pairs: Expr, ranks: Expr) -> Expr:
    ring = summed(LOOPS["ring"]().busiest) * h
    return sympy.simplify(ring.subs(P, ranks) / pairs)


@dataclass(frozen=True)
class Crossover:
    """Where one thing overtakes another: `value` in symbols, and in words."""

    name: str
    value: Expr
    meaning: str


F, B = sympy.symbols("F B", positive=True)
a, m, mu = sympy.symbols("a m mu", positive=True)


def crossovers() -> tuple[Crossover, ...]:
    """All of them, solved."""
    return (
        Crossover(
            "smallest block that hides the ring",
            hiding_block(),
            "tokens c at F flop/s and B bytes/s one way; F / B for g = h, e = 2",
        ),
        Crossover(
            "length from which striping wins",
            striping_length(),
            "tokens n above which striped beats ring with tiles of a x a tokens; mu is the extra"
            " share of time that a tile takes in a block that the mask cuts",
        ),
        Crossover(
            "query heads per KV head, elements",
            grouping(False),
            "h / g above which KV should travel backward and not the query side, by elements",
        ),
        Crossover(
            "query heads per KV head, bytes",
            grouping(True),
            "the same by bytes",
        ),
    )


def hiding_block() -> Expr:
    """c at which a full block takes as long as its successor's transfer (Ring Attention, 3)."""
    compute = 4 * d * h * c**2 / F
    transfer = c * _width("KV", True) / B
    (block,) = sympy.solve(compute - transfer, c)
    return block


def striping_length() -> Expr:
    """n at which ring's and striped's coarse tiles take equally long.

    m x m tiles of a tokens square; a kernel skips a tile that is wholly masked, so a triangular
    block computes m(m + 1)/2 of them; a tile of a cut block takes 1 + mu (mu < 1).
    """
    triangle = rows(m) * (1 + mu)
    ring = triangle + sympy.summation(m**2, (t, 1, P - 1))
    striped = sympy.summation(triangle, (t, 0, P - 1))
    (tiles,) = [root for root in sympy.solve(sympy.factor(ring - striped), m) if root != 0]
    above, below = sympy.fraction(tiles)
    return a * P * (-above / -below if below.could_extract_minus_sign() else tiles)


def grouping(in_bytes: bool) -> Expr:
    """h / g at which a backward hop of the query side carries as much as one of the KV side."""
    keys, queries = (
        sum(_width(name, in_bytes) for name in names)
        for names in (("KV", "DKV"), ("Q", "DOUT", "STATS", "DQ"))
    )
    (heads,) = sympy.solve(keys - queries, h)
    return sympy.factor(heads / g)
