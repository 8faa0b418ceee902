"""Determines the weight of each key in each query's row by probing.

    mask  -->  expected weights  -->  screened in packs  -->  slices that differ are measured

Without a fault, a few calls confirm all weights; wrong weights are measured one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.probes.questions import Answer, Indicators, Question
from ringloom.runtimes.audit.probes.screening import Wrong, expected, screen_ahead, screen_both
from ringloom.runtimes.audit.probes.slices import ahead, amount, both, by_column, half_of, signs
from ringloom.runtimes.audit.probes.weights import Lanes

Ask = Callable[[Question], Answer]
MOST = 1 << 28  # maximum number of cells of all matrices, 4 bytes each
UNSEEN = 0.125  # |sign - average| below which a gradient does not show a pair


@dataclass(frozen=True, slots=True)
class Seen:
    """Weights that probing showed, by tensor ("out", "dq", "dk", "dv"), query slots by columns.

    `blind`: pairs that dq and dk do not show, because their row has only one key or only keys of
    one sign; bool [slots, columns].
    """

    weights: dict[str, Lanes]
    blind: Array


def probe(case: Case, ask: Ask, gradients: bool, screened: bool = True) -> Seen:
    """Determines all weights; raises RingloomError for narrow heads and for too many rows.

    Unless `screened`, it measures all weights, and no question depends on an answer.
    """
    work, q, kv = case.work, case.side("q"), case.side("kv")
    tensors = 4 if gradients else 1
    if (cells := tensors * len(q.ranks) * kv.width) > MOST:
        raise RingloomError(
            f"probing {len(q.ranks)} queries and {kv.width} keys takes {cells * 4 / 2**30:.3g} GiB,"
            f" but the limit is {MOST * 4 / 2**30:.3g} GiB: audit a shorter sequence"
        )
    if gradients and half_of(work) < 1:
        raise RingloomError("probing gradients needs head_dim >= 2 and v_head_dim >= 3")
    out = Lanes(expected(case), (work.batch, work.heads), work.dtype)
    blind = np.zeros((len(q.ranks), kv.width), bool)
    if screened or not gradients:
        wrong = screen_ahead(case, ask, out) if screened else np.ones(kv.width, bool)
        _ahead(case, ask, out, wrong)
    weights = {"out": out}
    if gradients:
        weights |= {"dq": _copied(out, work.dtype)}
        weights |= {name: _shared(case, out) for name in ("dk", "dv")}
        both_wrong = np.ones(q.width, bool), np.ones(kv.width, bool)
        both_wrong = screen_both(case, ask, weights) if screened else both_wrong
        _both(case, ask, weights, blind, *both_wrong)
        sign = signs(kv.width)
        for _, _, matrix in out.items():
            blind |= np.isinf(seen_apart(sign - (matrix @ sign)[:, None])) | (
                not work.softmax_scale
            )
    return Seen(weights, blind)


def slices(wrong: Wrong, most: int) -> Iterator[tuple[int, int]]:
    """Yields (start, width) of slices of at most `most` columns that cover all wrong columns.

    wrong 0 0 1 0 1 1 0, most 3  -->  (2, 3), (5, 2)
    """
    at = 0
    while len(left := np.flatnonzero(wrong[at:])):
        start = at + int(left[0])
        at = min(start + most, len(wrong))
        yield start, at - start


def _ahead(case: Case, ask: Ask, weights: Lanes, wrong: Wrong) -> None:
    high = amount(case)
    for start, count in slices(wrong, case.work.v_head_dim):
        answer = ask(ahead(start, np.full(count, high)))
        weights.put_columns(start, answer.out[..., :count] / high)


def _both(
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
    for (first, queries), (at, keys) in pairs:
        given = (
            Indicators(first, 0, np.full(queries, high)),
            Indicators(at, half, np.full(keys, high)),
        )
        answer = ask(both(case, *given))
        average = answer.out[..., last].astype(np.float64)  # [batch, heads, slots]
        columns, rows = slice(at, at + keys), slots[first : first + queries]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = seen_apart(sign[columns] - average[..., None])
            weights["out"].put_columns(at, answer.out[..., half : half + keys] / high)
            if scale:  # dq and dk are zero without
                dq = answer.gradient("dq")[..., half : half + keys] / (high * scale) / apart
                weights["dq"].put_columns(at, dq)
            blind[:, columns] |= np.isinf(apart).any(axis=(0, 1))
            # dk and dv of a KV head are sums over its query heads
            apart = sign - average[:, :, rows, None]  # [batch, heads, a, keys]
            shared = apart.reshape(work.batch, work.kv_heads, work.group, *apart.shape[2:]).sum(2)
            shared = seen_apart(shared)
            if scale:
                dk = by_column(case, answer.gradient("dk")[..., :queries]).swapaxes(2, 3)
                weights["dk"].put_rows(rows, dk / (high * scale) / shared)
            dv = by_column(case, answer.gradient("dv")[..., :queries]).swapaxes(2, 3)
            weights["dv"].put_rows(rows, dv / (high * work.group))


def seen_apart(apart: Array) -> Array:
    """Returns the differences, with infinity for those that a gradient does not show."""
    return np.where(np.abs(apart) < UNSEEN, np.inf, apart)


def _copied(lanes: Lanes, dtype: str) -> Lanes:
    """Returns a copy of lanes and their weights."""
    copied = Lanes(lanes.first.copy(), lanes.lanes, dtype)
    copied.others = {lane: weights.copy() for lane, weights in lanes.others.items()}
    return copied


def _shared(case: Case, out: Lanes) -> Lanes:
    """Returns the weights of KV heads: averages over their query heads."""
    work = case.work
    lanes = (work.batch, work.kv_heads)
    shared = _copied(Lanes(out.first, lanes, work.dtype), work.dtype)
    for batch, head in dict.fromkeys((b, h // work.group) for b, h in out.others):
        group = [(batch, head * work.group + n) for n in range(work.group)]
        average = np.mean([out.others.get(lane, out.first) for lane in group], axis=0)
        if (batch, head) == (0, 0):
            shared.first = average
        else:
            shared.others[batch, head] = average
    return shared
