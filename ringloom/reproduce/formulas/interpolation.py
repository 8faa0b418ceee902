"""interpolated(schedule)   returns counts of a schedule as polynomials, from small plans.

Each count times the number of ranks is a polynomial in the number of ranks (or the sizes of a mesh)
and the tokens per rank, with different coefficients for even and odd numbers of ranks. A grid of
plans determines the polynomials, which must also predict a larger plan.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import sympy

from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.liveness import occupancy
from ringloom.planner.errors import RingloomError
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce.formulas.counts import critical_pairs, sent_blocks

Expr = Any  # a sympy expression; sympy has no types
Counts = dict[str, Fraction]
P, c, U, R = sympy.symbols("P c U R", positive=True, integer=True)
ODD = sympy.Mod(P, 2)
TOKENS = (2, 4, 6), 8  # tokens per rank of the grid, and of the held-out plan
EVEN_RANKS, ODD_RANKS = ((8, 10, 12, 14), 16), ((7, 9, 11, 13), 15)
MESH = ((2, 3, 4), 5), ((3, 4, 5), 6)  # ranks of a group, groups
Axis = tuple[Expr, tuple[Sequence[int], int]]


def counts(schedule: str, ranks: int, tokens: int) -> Counts:
    """Returns counts per rank in plans of one size; traffic and slots in blocks of `tokens`.

    Blocks have all heads. Keys of traffic: `pass tensor`, and `pass tensor finished` for complete
    results.
    """
    work = Workload(seq=ranks * tokens, heads=2 * ranks, kv_heads=ranks, head_dim=4)
    forward = plan(schedule, work, ranks)
    numbers = {
        "rounds": Fraction(forward.rounds),
        "busy": Fraction(int((loads(forward) > 0).sum()), ranks),
        "pairs": Fraction(critical_pairs(forward), work.heads),
    }
    for tensor in ("KV", "Q"):
        side = forward.side(tensor)
        sizes = side.sizes * side.head_counts
        occupied = occupancy(forward, tensor, sizes).max(initial=0)
        numbers[f"slots {tensor}"] = Fraction(int(occupied) * ranks, int(sizes.sum()))
    for direction in (forward, plan(schedule, work, ranks, pass_="backward")):
        for tensor, (sent, finished) in sent_blocks(direction).items():
            name = f"{direction.pass_} {tensor}"
            numbers |= {name: sent, f"{name} finished": finished}
    return numbers


@cache  # tests/plain/test_formulas.py takes far longer without this cache
def interpolated(schedule: str) -> dict[str, Expr]:
    """Returns the counts of a schedule as expressions of P and c; for usp, of U, R and c.

    Raises RingloomError if no polynomial fits all plans.
    """
    if schedule == "usp":
        mesh = ((U, MESH[0]), (R, MESH[1]))
        return _expressions(lambda u, r, t: counts(f"usp:ulysses={u}", u * r, t), mesh, U * R)
    even, odd = (
        _expressions(lambda ranks, t: counts(schedule, ranks, t), ((P, ranks),), P)
        for ranks in (EVEN_RANKS, ODD_RANKS)
    )
    return {name: even[name] + ODD * sympy.expand(odd[name] - even[name]) for name in even}


def _expressions(
    count_plans: Callable[..., Counts], sizes: Sequence[Axis], ranks: Expr
) -> dict[str, Expr]:
    axes = (*sizes, (c, TOKENS))
    count_plans = cache(count_plans)
    held_out = {symbol: last for symbol, (_, last) in axes}
    expressions = {}
    for name, expected in count_plans(*held_out.values()).items():

        def times_ranks(*point: int, name: str = name) -> Expr:
            values = dict(zip(held_out, point, strict=True))
            return sympy.Rational(count_plans(*point)[name]) * ranks.subs(values)

        total = _interpolate(times_ranks, axes)
        expressions[name] = sympy.expand(total / ranks)
        if expressions[name].subs(held_out) != sympy.Rational(expected):
            raise RingloomError(f"no polynomial for {name} fits all plans")
    return expressions


def _interpolate(value: Callable[..., Expr], axes: Sequence[Axis], *point: int) -> Expr:
    """Returns the polynomial through the values on a grid; interpolates symbol by symbol."""
    if not axes:
        return value(*point)
    (symbol, (coordinates, _)), *others = axes
    points = [(x, _interpolate(value, others, *point, x)) for x in coordinates]
    return sympy.interpolate(points, symbol)
