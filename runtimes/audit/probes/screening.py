"""Screens weights in packs of columns that share a dimension, to locate unexpected weights.

    plain   one column per dimension          shows its weights
    pack    several columns per dimension     shows the sum of factor[column] weight[column]

Factors are random numbers between 1 and 2, so that a missing and an extra weight hardly ever
cancel; random inputs would reveal such faults. The columns of an unexpected pack are then measured
individually.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.grid import grid_of
from ringloom.runtimes.audit.probes.questions import Answer, Indicators, Question
from ringloom.runtimes.audit.probes.slices import (
    amount,
    ask_both,
    ask_forward,
    by_column,
    half_of,
    signs,
)
from ringloom.runtimes.audit.probes.weights import ROUGH, Lanes

Ask = Callable[[Question], Answer]
Wrong = NDArray[np.bool_]  # of each column
# Columns of a pack, and the allowed error of a sum as a share of a weight. In 16 bit, results are
# rounded by 2**-9 of the sum, which is a hundredth of a weight in packs of four.
SIZE, MAX_ERROR = 16, 1e-3
SIZE_16, MAX_ERROR_16 = 4, 0.03
MIN_AGREEING = 3  # packs that must agree on a factor
STEPS = 64  # factors are multiples of 1/64, which are exact in 16 bit


@dataclass(frozen=True, slots=True, eq=False)
class Packs:
    """The packs of all columns of queries or of keys.

    `factors`: by column. `size`: columns per pack. `dims`: packs per question.
    """

    factors: NDArray[np.float64]
    size: int
    dims: int

    def slices(self) -> Iterator[slice]:
        """Yields the columns of each question, or nothing if packs have one column."""
        if self.size > 1:
            step = self.size * self.dims
            for start in range(0, len(self.factors), step):
                yield slice(start, min(start + step, len(self.factors)))

    def sums(self, weights: Array, part: slice) -> Array:
        """Returns the sums of packs of a question, [..., packs], from weights [..., columns]."""
        starts = np.arange(0, weights.shape[-1], self.size)
        return np.asarray(np.add.reduceat(weights * self.factors[part], starts, axis=-1))

    def of_columns(self, packs: Any, part: slice) -> Wrong:
        """Expands an array of packs to an array of their columns."""
        return np.repeat(packs, self.size)[: part.stop - part.start]


def packs_of(case: Case, columns: int, dims: int, stream: int) -> Packs:
    """Returns packs for `columns` and `dims`, with random factors from a stream of the seed."""
    size = min(SIZE_16 if case.work.dtype in ROUGH else SIZE, -(-columns // dims))
    drawn = np.random.default_rng([case.seed, stream]).integers(0, STEPS, columns)
    return Packs(1 + drawn / STEPS, size, dims)


def expected_weights(case: Case) -> Array:
    """Returns the weights under the mask: float32, query slots by columns."""
    grid = grid_of(case)
    weights = np.zeros((len(case.side("q").ranks), grid.wanted.shape[1]), np.float32)
    number = np.maximum(grid.wanted.sum(axis=1, keepdims=True, dtype=np.float32), 1)
    weights[grid.rows] = grid.wanted / number
    return weights


def screen_forward(case: Case, ask: Ask, out: Lanes) -> Wrong:
    """Returns the columns of keys whose packs are unexpected in the output.

    If all packs of a row differ by the same factor, the weights of the row are multiplied by the
    factor and count as expected.
    """
    packs, high = packs_of(case, out.first.shape[1], case.work.v_head_dim, 0), amount(case)
    wrong, rows = np.full(out.first.shape[1], packs.size == 1), case.side("q").positions >= 0
    units = _units(out.first)[:, None]
    for part in packs.slices():
        sums = ask(ask_forward(part.start, packs.factors[part] * high, packs.size)).out / high
        wanted = by_lane(out, partial(_sums, packs, part))
        off, factors = fit_factors(case, sums[..., : wanted.shape[-1]], wanted, units)
        put_columns(out, part, factors)
        wrong[part] = packs.of_columns(off[:, :, rows].any(axis=(0, 1, 2)), part)
    return wrong


def screen_both(case: Case, ask: Ask, weights: dict[str, Lanes]) -> tuple[Wrong, Wrong]:
    """Returns the columns of queries, and of keys, whose packs are unexpected.

    Wrong keys show in out and dq, wrong queries in dk and dv. Gradients are expected to agree with
    the output. If all packs of a row or column differ by the same factor, its weights are
    multiplied by the factor and count as expected.
    """
    q, kv, half, high = case.side("q"), case.side("kv"), half_of(case.work), amount(case)
    queries, keys = packs_of(case, q.width, half, 1), packs_of(case, kv.width, half, 2)
    if queries.size == 1 or keys.size == 1:
        return np.ones(q.width, bool), np.ones(kv.width, bool)
    wrong = np.zeros(q.width, bool), np.zeros(kv.width, bool)
    slots, units = np.argsort(q.columns), _units(weights["out"].first)
    loud = np.exp2(np.clip(np.rint(-np.log2(units)), 0, np.log2(high)))[slots]
    for a, b in zip_longest(queries.slices(), keys.slices(), fillvalue=slice(0, 0)):
        indicators = (
            Indicators(a.start, 0, queries.factors[a] * loud[a], queries.size),
            Indicators(b.start, half, keys.factors[b] * high, keys.size),
        )
        answer = ask(ask_both(case, *indicators))
        wrong[0][a] = _queries_off(case, answer, weights, queries, a, slots[a], loud[a])
        wrong[1][b] = _keys_off(case, answer, weights, keys, b, units)
    return wrong


def _keys_off(
    case: Case, answer: Answer, weights: dict[str, Lanes], packs: Packs, part: slice, units: Array
) -> Wrong:
    """Returns the columns of keys that are unexpected in the row of any query."""
    sign, high, half = signs(case.side("kv").width), amount(case), half_of(case.work)
    out, rows = weights["out"], case.side("q").positions >= 0
    wanted = by_lane(out, lambda w: packs.sums(w[:, part], part))
    signed = by_lane(out, lambda w: packs.sums(w[:, part] * sign[part], part))
    signed -= by_lane(out, lambda w: w @ sign)[..., None] * wanted
    dims = slice(half, half + wanted.shape[-1])
    wrong, scale = np.zeros(wanted.shape[-1], bool), case.work.softmax_scale
    comparisons = [("out", answer.out[..., dims] / high, wanted)]
    if scale:  # dq is zero without a scale
        comparisons += [("dq", answer.gradient("dq")[..., dims] / (high * scale), signed)]
    for name, sums, expected_sums in comparisons:
        off, factors = fit_factors(case, sums, expected_sums, units[:, None])
        put_columns(weights[name], part, factors)
        wrong |= off[:, :, rows].any(axis=(0, 1, 2))
    return packs.of_columns(wrong, part)


def _queries_off(
    case: Case,
    answer: Answer,
    weights: dict[str, Lanes],
    packs: Packs,
    part: slice,
    slots: Array,
    loud: Array,
) -> Wrong:
    """Returns the columns of queries that contribute unexpectedly to the gradient of some key.

    Gradients of a KV head are sums over its query heads.
    """
    work, out, sign = case.work, weights["out"], signs(case.side("kv").width)
    dv = by_lane(out, lambda w: packs.sums(w[slots].T * loud, part))
    mean = by_lane(out, lambda w: packs.sums(w[slots].T * (w[slots] @ sign * loud), part))
    wanted = {"dk": (sign[:, None] * dv - mean) * work.softmax_scale, "dv": dv}
    wrong = np.zeros(dv.shape[-1], bool)
    for name, unit in (("dk", abs(work.softmax_scale)), ("dv", 1.0)):
        heads = wanted[name].reshape(work.batch, work.kv_heads, work.group, *dv.shape[2:])
        sums = by_column(case, answer.gradient(name)[..., : dv.shape[-1]])
        off, factors = fit_factors(case, sums, heads.sum(2), unit * work.group)
        put_rows(weights[name], slots, factors)
        wrong |= off.any(axis=(0, 1, 2))
    return packs.of_columns(wrong, part)


def fit_factors(
    case: Case, sums: Array, wanted: Array, unit: Array | float
) -> tuple[Wrong, Array | None]:
    """Returns which sums [.., lines, packs] no factor of their line explains, and the factors.

    A line is a row or a column. The factors are None if all of them are 1.
    """
    off = _differs(case, sums, wanted, unit)
    lines = np.asarray(off.any(axis=-1))
    factors, units = np.ones(lines.shape), np.broadcast_to(unit, (*wanted.shape[:-1], 1))
    for lane in map(tuple, np.argwhere(lines.any(axis=-1))):
        rows = np.flatnonzero(lines[lane])
        row_sums, row_wanted, size = sums[lane][rows], wanted[lane][rows], units[lane][rows]
        factors[lane][rows] = common = factors_of(case, row_sums, row_wanted, size)
        off[lane][rows] = _differs(case, row_sums, common[:, None] * row_wanted, size)
    return off, factors if (factors != 1).any() else None


def factors_of(case: Case, sums: Array, wanted: Array, unit: Array) -> Array:
    """Returns the factor between the sums and the wanted sums of each line, from [lines, packs].

    The factor is one on which at least half and at least three packs of the line agree; otherwise
    the median of such factors of other lines, if all packs of this line agree with it; otherwise 1.
    """
    is_known = np.isfinite(sums) & (np.abs(wanted) > unit / 2)
    ratio = np.where(is_known, sums / np.where(is_known, wanted, 1), np.nan)
    ratio[~is_known.any(axis=1)] = 1
    median = np.nanmedian(ratio, axis=1)
    agreeing_count = (is_known & ~_differs(case, sums, median[:, None] * wanted, unit)).sum(axis=1)
    is_certain = agreeing_count >= np.maximum(MIN_AGREEING, is_known.sum(axis=1) / 2)
    default = float(np.median(median[is_certain])) if is_certain.any() else 1.0
    has_default = ~_differs(case, sums, default * wanted, unit).any(axis=1)
    return np.where(is_certain, median, np.where(has_default, default, 1.0))


def put_columns(lanes: Lanes, part: slice, factors: Array | None) -> None:
    """Multiplies columns of weights by a factor of each row, [batch, heads, rows]."""
    if factors is not None:
        columns = by_lane(lanes, lambda w: w[:, part])
        lanes.put_columns(part.start, columns * factors[..., None])


def put_rows(lanes: Lanes, rows: Array, factors: Array | None) -> None:
    """Multiplies rows of weights by a factor of each column, [batch, heads, columns]."""
    if factors is not None:
        lanes.put_rows(rows, by_lane(lanes, lambda w: w[rows]) * factors[:, :, None])


def by_lane(lanes: Lanes, function: Callable[[Array], Array]) -> Array:
    """Applies a function to the weights of each lane: [batch, heads, ...]."""
    first = function(lanes.first)
    result = np.empty((*lanes.lanes, *first.shape), first.dtype)
    result[:] = first
    for lane, weights in lanes.others.items():
        result[lane] = function(weights)
    return result


def _sums(packs: Packs, part: slice, weights: Array) -> Array:
    return packs.sums(weights[:, part], part)


def _units(weights: Array) -> Array:
    """Returns the largest weight of each row, or 1 / columns if it has none."""
    largest = weights.max(axis=1, initial=0.0)
    return np.asarray(np.where(largest > 0, largest, 1 / weights.shape[1]))


def _differs(case: Case, sums: Array, wanted: Array, unit: Array | float) -> Wrong:
    """Returns True for sums that differ from the wanted sums by more than rounding, or are NaN."""
    allowed = (MAX_ERROR_16 if case.work.dtype in ROUGH else MAX_ERROR) * unit
    return np.asarray(~(np.abs(sums - wanted) <= allowed))
