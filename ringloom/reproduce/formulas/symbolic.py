"""Costs of each schedule as formulas from counts of plans, and crossover points of schedules.

The mask is causal; n = P c tokens on P ranks, h query heads and g KV heads of d elements; e bytes
per element of an input, w bytes per element of a partial result; P = U R for USP.
"""

from collections.abc import Mapping
from functools import cache

import sympy

from ringloom.planner.errors import RingloomError, brief, choices
from ringloom.planner.ir import TENSORS, Pass
from ringloom.planner.schedules import SCHEDULES, classic_schedules, recorded_name
from ringloom.reproduce.formulas.interpolation import ODD, Expr, P, R, U, c, interpolated

d, g, h, e, w = sympy.symbols("d g h e w", positive=True, integer=True)
n = P * c
SYMBOLS = {
    "P": "ranks",
    "c": "tokens per rank, n = P c",
    "h": "query heads",
    "g": "KV heads",
    "d": "elements per head",
    "e": "bytes per element of an input",
    "w": "bytes per element of a partial result",
    "U": "ranks per group (usp: P = U R)",
    "R": "groups (usp)",
}
NAMES = {
    "rounds": "rounds",
    "pairs": "pairs on the critical path",
    "all_pairs": "total pairs",
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
    """Returns an expression for even and for odd P, or under "" if it is the same for both."""
    if not expr.has(ODD):
        return {"": expr}
    return {
        name: sympy.factor(sympy.simplify(expr.subs(ODD, remainder)))
        for name, remainder in (("even P", 0), ("odd P", 1))
    }


def _width(tensor: str, in_bytes: bool, finished: bool = False) -> Expr:
    """Returns elements or bytes per token of a tensor; finished results are as wide as inputs."""
    kind = TENSORS[tensor]
    heads = h if kind.side == "q" else g
    width = (w if kind.wide else e) if in_bytes else 1
    vector_width = e if finished and in_bytes else width
    return heads * (len(kind.vectors) * d * vector_width + kind.scalars * width)


def _traffic(counted: dict[str, Expr], pass_: Pass, in_bytes: bool) -> Expr:
    """Returns the average elements or bytes that a rank sends."""
    total = sympy.Integer(0)
    for tensor in TENSORS:
        sent, finished = (counted.get(f"{pass_} {tensor}{end}", 0) for end in ("", " finished"))
        total += c * (sent - finished) * _width(tensor, in_bytes)
        total += c * finished * _width(tensor, in_bytes, finished=True)
    return total


@cache  # tests/plain/test_formulas.py takes 1.3 times as long without this cache
def formulas(schedule: str) -> Mapping[str, Expr]:
    """Returns the formulas of a schedule under a causal mask, by the keys of `NAMES`.

    Pairs are (query, key, head) triples of one batch row; the critical path sums the busiest rank
    of each round; traffic is an average over ranks; slots hold copies of other ranks' blocks (c
    tokens, all heads); speedups count pairs. Raises RingloomError for a schedule without formulas.
    """
    schedule = recorded_name(schedule)
    if schedule not in classic_schedules():
        raise RingloomError(
            f"no formulas for {brief(schedule)}: {choices(schedule, classic_schedules())}"
        )
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
    """Describes the transfers of a schedule, and the conditions of its formulas."""
    row = SCHEDULES[recorded_name(schedule)]
    conditions = "causal, at least 7 ranks, KV heads divisible by P"
    return f"{row.travels} over {row.path}; {conditions}"


F, B = sympy.symbols("F B", positive=True)
a, m, mu, M = sympy.symbols("a m mu M", positive=True)
EXTRA = "mu: extra share of a tile's time in a block that the mask cuts"


def crossovers() -> Mapping[str, tuple[Expr, str]]:
    """Returns (formula, meaning) of each crossover point by name."""
    return {
        "smallest block that hides the ring": (
            hiding_block(),
            "tokens c at F flop/s and B bytes/s one way; F / B for g = h, e = 2",
        ),
        "on-chip memory for which tiling pays": (
            tiling_memory(),
            "elements M above which tiles of M / 4d tokens move fewer elements than no tiles",
        ),
        "length from which striping wins": (
            striping_length(),
            f"tokens n above which striped beats ring with tiles of a x a tokens; {EXTRA}",
        ),
        "query heads per KV head, elements": (
            grouping(False),
            "h / g above which the backward pass sends fewer elements if the KV side travels",
        ),
        "query heads per KV head, bytes": (grouping(True), "the same for bytes"),
    }


def hiding_block() -> Expr:
    """Returns c for which computing a full block takes as long as sending the next one.

    Ring Attention, section 3.
    """
    compute = 4 * d * h * c**2 / F
    transfer = c * _width("KV", True) / B
    (block,) = sympy.solve(compute - transfer, c)
    return block


def untiled() -> Expr:
    """Returns the elements per head that a c x c block moves if scores are stored in memory.

    It moves Q, K, V and the output once, and writes and reads scores and weights (BurstAttention,
    3.1).
    """
    return 4 * c * d + 4 * c**2


def tiled() -> Expr:
    """Returns the elements per head that a c x c block moves in FlashAttention's tiles of M / 4d.

    It reads K and V once; for each tile of them it reads Q, and reads and writes the output.
    """
    return 2 * c * d + 3 * c * d * (c / (M / (4 * d)))


def tiling_memory() -> Expr:
    """Returns M for which a long block moves as many elements with tiles as without."""
    difference = sympy.limit((untiled() - tiled()) / c**2, c, sympy.oo)
    (memory,) = sympy.solve(difference, M)
    return memory


def striping_length() -> Expr:
    """Returns n for which the coarse tiles of ring and striped take equally long.

    A block has m x m tiles of a x a tokens. Kernels skip masked tiles, so a triangular block
    computes m(m + 1)/2 tiles, each of which takes 1 + mu (mu < 1).
    """
    triangle = m * (m + 1) / 2 * (1 + mu)
    ring = triangle + (P - 1) * m**2
    striped = P * triangle
    (tiles,) = [root for root in sympy.solve(sympy.factor(ring - striped), m) if root != 0]
    numerator, denominator = sympy.fraction(tiles)
    if denominator.could_extract_minus_sign():
        numerator, denominator = -numerator, -denominator
    return a * P * (numerator / denominator)


def grouping(in_bytes: bool) -> Expr:
    """Returns h / g for which a backward hop moves as much of the query side as of the KV side."""
    keys, queries = (
        sum(_width(name, in_bytes) for name in names)
        for names in (("KV", "DKV"), ("Q", "DOUT", "STATS", "DQ"))
    )
    (heads,) = sympy.solve(keys - queries, h)
    return sympy.factor(heads / g)
