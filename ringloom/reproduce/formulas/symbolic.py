"""Costs of each schedule as formulas counted in plans, and where one overtakes another.

Causal, P ranks of c tokens (n = P c), h query heads and g KV heads of d elements, e bytes of an
input and w bytes of a partial result; for USP, P = U R.
"""

from collections.abc import Mapping
from functools import cache

import sympy

from ringloom.planner.errors import RingloomError, brief, choices
from ringloom.planner.ir import TENSORS, Pass
from ringloom.planner.schedules import SCHEDULES, classic, recorded_name
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
NAMES = {
    "rounds": "rounds",
    "pairs": "pairs on the critical path",
    "all_pairs": "pairs in all",
    "idle_cells": "idle share, cells of the schedule",
    "idle_cells_of_square": "idle share, cells over P^2",
    "idle_areas": "idle share, areas",
    "forward_elements": "forward traffic, elements",
    "backward_elements": "backward traffic, elements",
    "forward_bytes": "forward traffic, bytes",
    "backward_bytes": "backward traffic, bytes",
    "slots_kv": "slots of KV",
    "slots_q": "slots of Q",
    "speedup": "speedup over one rank",
    "speedup_over_ring": "speedup over ring",
}


def parities(expr: Expr) -> dict[str, Expr]:
    """Splits an expression with parity terms into forms for even and odd P; keeps any other."""
    if not expr.has(ODD):
        return {"": expr}
    return {
        name: sympy.factor(sympy.simplify(expr.subs(ODD, rest)))
        for name, rest in (("even P", 0), ("odd P", 1))
    }


def _width(tensor: str, in_bytes: bool, finished: bool = False) -> Expr:
    """Returns elements or bytes per token of a tensor, all heads; finished results are 16 bit."""
    kind = TENSORS[tensor]
    heads = h if kind.side == "q" else g
    wide = (w if kind.wide else e) if in_bytes else 1
    vectors = e if finished and in_bytes else wide
    return heads * (len(kind.vectors) * d * vectors + kind.scalars * wide)


def _traffic(counted: dict[str, Expr], pass_: Pass, in_bytes: bool) -> Expr:
    """Returns the average elements or bytes that a rank sends."""
    total = sympy.Integer(0)
    for tensor in TENSORS:
        every, finished = (counted.get(f"{pass_} {tensor}{end}", 0) for end in ("", " finished"))
        total += c * (every - finished) * _width(tensor, in_bytes)
        total += c * finished * _width(tensor, in_bytes, finished=True)
    return total


@cache  # tests/plain/test_formulas.py takes 1.3 times as long without this cache
def formulas(schedule: str) -> Mapping[str, Expr]:
    """Returns the formulas of a schedule under a causal mask, by the keys of `NAMES`.

    Pairs are (query, key, head) triples of one batch row; the critical path sums the busiest rank
    of each round; traffic is the average that a rank sends; slots are copies of blocks of other
    ranks, in blocks of c tokens with all heads; speedups count pairs. Raises RingloomError for a
    schedule without formulas.
    """
    schedule = recorded_name(schedule)
    if schedule not in classic():
        raise RingloomError(f"no formulas of {brief(schedule)}: {choices(schedule, classic())}")
    counted, ranks = interpolated(schedule), U * R if schedule == "usp" else P
    rounds, pairs = counted["rounds"], counted["pairs"] * h
    total = h * ranks * c * (ranks * c + 1) / 2
    idle = ranks * (rounds - counted["busy"])
    expressions = {
        "rounds": rounds,
        "pairs": pairs,
        "all_pairs": total,
        "idle_cells": idle / (ranks * rounds),
        "idle_cells_of_square": idle / ranks**2,  # as DistFlashAttn prints
        "idle_areas": 1 - total / (ranks * pairs),
        "forward_elements": _traffic(counted, "forward", in_bytes=False),
        "backward_elements": _traffic(counted, "backward", in_bytes=False),
        "forward_bytes": _traffic(counted, "forward", in_bytes=True),
        "backward_bytes": _traffic(counted, "backward", in_bytes=True),
        "slots_kv": counted["slots KV"],
        "slots_q": counted["slots Q"],
        "speedup": total / pairs,
        "speedup_over_ring": interpolated("ring")["pairs"].subs(P, ranks) * h / pairs,
    }
    return {name: sympy.factor(expr) for name, expr in expressions.items()}


def about(schedule: str) -> str:
    """Returns what a schedule sends, and where its formulas apply."""
    row = SCHEDULES[recorded_name(schedule)]
    return f"{row.travels} over {row.path}; causal, P divides the KV heads, from 7 ranks on"


F, B = sympy.symbols("F B", positive=True)
a, m, mu, M = sympy.symbols("a m mu M", positive=True)
EXTRA = "mu is the extra share of time that a tile takes in a block that the mask cuts"


def crossovers() -> Mapping[str, tuple[Expr, str]]:
    """Returns crossover points by name: the value as a formula, and its meaning."""
    return {
        "smallest block that hides the ring": (
            hiding_block(),
            "tokens c at F flop/s and B bytes/s one way; F / B for g = h, e = 2",
        ),
        "memory of a chip from which tiles pay": (
            tiling_memory(),
            "elements M above which tiles of M / 4d tokens save more than they read again",
        ),
        "length from which striping wins": (
            striping_length(),
            f"tokens n above which striped beats ring with tiles of a x a tokens; {EXTRA}",
        ),
        "query heads per KV head, elements": (
            grouping(False),
            "h / g above which KV should travel backward and not the query side, by elements",
        ),
        "query heads per KV head, bytes": (grouping(True), "the same by bytes"),
    }


def hiding_block() -> Expr:
    """c at which a full block takes as long as its successor's transfer (Ring Attention, 3)."""
    compute = 4 * d * h * c**2 / F
    transfer = c * _width("KV", True) / B
    (block,) = sympy.solve(compute - transfer, c)
    return block


def untiled() -> Expr:
    """Elements per head that a block of c x c tokens moves if its scores pass through memory.

    Q, K, V and the output once, scores written and read, and weights, too (BurstAttention, 3.1).
    """
    return 4 * c * d + 4 * c**2


def tiled() -> Expr:
    """Elements per head that it moves in tiles of M / 4d tokens, as FlashAttention does.

    Each tile of K and V is read once, and past it go all of Q and, there and back, the output.
    """
    return 2 * c * d + 3 * c * d * (c / (M / (4 * d)))


def tiling_memory() -> Expr:
    """M at which both move equally much, of long blocks: three tiles of d x d elements."""
    long = sympy.limit((untiled() - tiled()) / c**2, c, sympy.oo)
    (memory,) = sympy.solve(long, M)
    return memory


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
