"""Costs of each schedule in symbols, as its plans count them, and where one overtakes another.

Causal, P ranks of c tokens (n = P c), h query heads and g KV heads of d elements, e bytes of an
input and w bytes of a partial result; for USP, P = U R.
"""

from dataclasses import dataclass
from functools import cache

import sympy

from planner.errors import RingloomError
from planner.ir import TENSORS, Pass
from planner.schedules import SCHEDULES, classic
from ringloom.reproduce.formulas.interpolation import ODD, Expr, P, R, U, c, interpolated

d, g, h, e, w = sympy.symbols("d g h e w", positive=True, integer=True)
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
    """An expression that differs for even and for odd P, as both; any other as it is."""
    if not expr.has(ODD):
        return {"": expr}
    return {
        name: sympy.factor(sympy.simplify(expr.subs(ODD, rest)))
        for name, rest in (("even P", 0), ("odd P", 1))
    }


def _width(tensor: str, in_bytes: bool, finished: bool = False) -> Expr:
    """Elements or bytes of one token of a tensor, all its heads; a finished result is narrow."""
    kind = TENSORS[tensor]
    heads = h if kind.side == "q" else g
    wide = (w if kind.wide else e) if in_bytes else 1
    vectors = e if finished and in_bytes else wide
    return heads * (len(kind.vectors) * d * vectors + kind.scalars * wide)


def _traffic(counted: dict[str, Expr], pass_: Pass, in_bytes: bool) -> Expr:
    """Returns what a rank sends, on average."""
    total = sympy.Integer(0)
    for tensor in TENSORS:
        every, finished = (counted.get(f"{pass_} {tensor}{end}", 0) for end in ("", " finished"))
        total += c * (every - finished) * _width(tensor, in_bytes)
        total += c * finished * _width(tensor, in_bytes, finished=True)
    return sympy.factor(total)


@cache
def formulas(schedule: str) -> Formulas:
    """The formulas of a schedule. Raises RingloomError for one that has none."""
    if schedule not in classic():
        raise RingloomError(f"no formulas of {schedule!r}: choose one of {', '.join(classic())}")
    row, counted = SCHEDULES[schedule], interpolated(schedule)
    ranks = U * R if schedule == "usp" else P
    rounds, pairs = counted["rounds"], counted["pairs"] * h
    total = h * ranks * c * (ranks * c + 1) / 2
    ring = interpolated("ring")["pairs"].subs(P, ranks) * h
    idle = ranks * (rounds - counted["busy"])
    traffic = {
        f"{pass_}_{'bytes' if in_bytes else 'elements'}": _traffic(counted, pass_, in_bytes)
        for pass_ in PASSES
        for in_bytes in (False, True)
    }
    return Formulas(
        schedule=schedule,
        about=f"{row.travels} over {row.path}; causal, P divides the KV heads, from 7 ranks on",
        rounds=rounds,
        pairs=sympy.factor(pairs),
        all_pairs=sympy.factor(total),
        idle_cells=sympy.factor(idle / (ranks * rounds)),
        idle_cells_of_square=sympy.factor(idle / ranks**2),
        idle_areas=sympy.factor(1 - total / (ranks * pairs)),
        **traffic,
        slots_kv=sympy.factor(counted["slots KV"]),
        slots_q=sympy.factor(counted["slots Q"]),
        speedup=sympy.factor(total / pairs),
        speedup_over_ring=sympy.factor(ring / pairs),
    )


PASSES: tuple[Pass, ...] = ("forward", "backward")


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
    triangle = m * (m + 1) / 2 * (1 + mu)
    ring = triangle + (P - 1) * m**2
    striped = P * triangle
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
