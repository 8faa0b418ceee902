"""Determines the weight of each key in each query's row by probing.

    mask  -->  expected weights  -->  screening in packs  -->  measurement of slices that differ

Without a fault, a few calls confirm all weights. Wrong weights are measured individually.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.probes.questions import Answer, Indicators, Question
from ringloom.runtimes.audit.probes.screening import (
    Wrong,
    expected_weights,
    screen_both,
    screen_forward,
)
from ringloom.runtimes.audit.probes.slices import (
    amount,
    ask_both,
    ask_forward,
    by_column,
    half_of,
    signs,
)
from ringloom.runtimes.audit.probes.weights import Lanes

Ask = Callable[[Question], Answer]
MAX_CELLS = 1 << 28  # of all matrices, 4 bytes each
MIN_DIFFERENCE = 0.125  # |sign - average| below which a gradient does not show a pair


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Weights that probing showed, by tensor ("out", "dq", "dk", "dv"): [query slots, columns].

    `blind`: pairs that dq and dk do not show, because their row has only one key or only keys of
    one sign; bool [query slots, columns].
    """

    weights: dict[str, Lanes]
    blind: Array


def probe(case: Case, ask: Ask, gradients: bool, screened: bool = True) -> ProbeResult:
    """Determines all weights; raises RingloomError for narrow heads and for long sequences.

    Without screening, all weights are measured, and no question depends on an answer.
    """
    work, q, kv = case.work, case.side("q"), case.side("kv")
    tensors = 4 if gradients else 1
    if (cells := tensors * len(q.ranks) * kv.width) > MAX_CELLS:
        raise RingloomError(
            f"probing {len(q.ranks)} queries and {kv.width} keys takes {cells * 4 / 2**30:.3g} GiB,"
            f" but the limit is {MAX_CELLS * 4 / 2**30:.3g} GiB: audit a shorter sequence"
        )
    if gradients and half_of(work) < 1:
        raise RingloomError("probing gradients needs head_dim >= 2 and v_head_dim >= 3")
    out = Lanes(expected_weights(case), (work.batch, work.heads), work.dtype)
    blind = np.zeros((len(q.ranks), kv.width), bool)
    if screened or not gradients:
        wrong = screen_forward(case, ask, out) if screened else np.ones(kv.width, bool)
        _measure_forward(case, ask, out, wrong)
    weights = {"out": out}
    if gradients:
        weights |= {"dq": _copy(out, work.dtype)}
        weights |= {name: _average_group(case, out) for name in ("dk", "dv")}
        wrong_sides = np.ones(q.width, bool), np.ones(kv.width, bool)
        wrong_sides = screen_both(case, ask, weights) if screened else wrong_sides
        _measure_both(case, ask, weights, blind, *wrong_sides)
        sign = signs(kv.width)
        for _, _, matrix in out.items():
            difference = mark_invisible(sign - (matrix @ sign)[:, None])
            blind |= np.isinf(difference) | (not work.softmax_scale)
    return ProbeResult(weights, blind)


def slices(wrong: Wrong, max_width: int) -> Iterator[tuple[int, int]]:
    """Yields (start, width) of slices that cover all wrong columns.

    wrong 0 0 1 0 1 1 0, max_width 3  -->  (2, 3), (5, 2)
    """
    end = 0
    while len(columns := np.flatnonzero(wrong[end:])):
        start = end + int(columns[0])
        end = min(start + max_width, len(wrong))
        yield start, end - start


def _measure_forward(case: Case, ask: Ask, weights: Lanes, wrong: Wrong) -> None:
    high = amount(case)
    for start, width in slices(wrong, case.work.v_head_dim):
        answer = ask(ask_forward(start, np.full(width, high)))
        weights.put_columns(start, answer.out[..., :width] / high)


def _measure_both(
    case: Case,
    ask: Ask,
    weights: dict[str, Lanes],
    blind: Array,
    wrong_queries: Wrong,
    wrong_keys: Wrong,
) -> None:
    work, q = case.work, case.side("q")
    half, last, scale = half_of(work), work.v_head_dim - 1, work.softmax_scale
    high, sign, slots = amount(case), signs(case.side("kv").width), np.argsort(q.columns)
    pairs = zip_longest(slices(wrong_queries, half), slices(wrong_keys, half), fillvalue=(0, 0))
    for (first_query, queries), (first_key, keys) in pairs:
        indicators = (
            Indicators(first_query, 0, np.full(queries, high)),
            Indicators(first_key, half, np.full(keys, high)),
        )
        answer = ask(ask_both(case, *indicators))
        average = answer.out[..., last].astype(np.float64)  # [batch, heads, slots]
        columns = slice(first_key, first_key + keys)
        rows = slots[first_query : first_query + queries]
        with np.errstate(divide="ignore", invalid="ignore"):
            difference = mark_invisible(sign[columns] - average[..., None])
            weights["out"].put_columns(first_key, answer.out[..., half : half + keys] / high)
            if scale:  # dq and dk are zero without a scale
                dq = answer.gradient("dq")[..., half : half + keys] / (high * scale) / difference
                weights["dq"].put_columns(first_key, dq)
            blind[:, columns] |= np.isinf(difference).any(axis=(0, 1))
            # dk and dv of a KV head are sums over its query heads
            difference = sign - average[:, :, rows, None]  # [batch, heads, queries, keys]
            groups = work.batch, work.kv_heads, work.group, *difference.shape[2:]
            shared = mark_invisible(difference.reshape(groups).sum(axis=2))
            if scale:
                dk = by_column(case, answer.gradient("dk")[..., :queries]).swapaxes(2, 3)
                weights["dk"].put_rows(rows, dk / (high * scale) / shared)
            dv = by_column(case, answer.gradient("dv")[..., :queries]).swapaxes(2, 3)
            weights["dv"].put_rows(rows, dv / (high * work.group))


def mark_invisible(difference: Array) -> Array:
    """Returns differences, with infinity for those that are too small to show in a gradient."""
    return np.where(np.abs(difference) < MIN_DIFFERENCE, np.inf, difference)


def _copy(lanes: Lanes, dtype: str) -> Lanes:
    """Returns a copy of lanes and their weights."""
    copy = Lanes(lanes.first.copy(), lanes.lanes, dtype)
    copy.others = {lane: weights.copy() for lane, weights in lanes.others.items()}
    return copy


def _average_group(case: Case, out: Lanes) -> Lanes:
    """Returns the weights of KV heads, as averages over their query heads."""
    work = case.work
    lanes = (work.batch, work.kv_heads)
    shared = _copy(Lanes(out.first, lanes, work.dtype), work.dtype)
    for batch, head in dict.fromkeys((b, h // work.group) for b, h in out.others):
        group = [(batch, head * work.group + n) for n in range(work.group)]
        average = np.mean([out.others.get(lane, out.first) for lane in group], axis=0)
        if (batch, head) == (0, 0):
            shared.first = average
        else:
            shared.others[batch, head] = average
    return shared
