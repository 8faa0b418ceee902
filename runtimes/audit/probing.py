"""Recovers weights by probing: which key weighs how much in which query's row, slice by slice.

With q or k zero all scores of a row are equal, and a row of the output is the average of the values
it attends. A question has two slices of as many columns, keys b and queries a, and with `half`
dimensions each it shows four matrices at once:

    dimension  0 .. half - 1     half .. 2 half - 1    last
    q          indicators of a                               q k = 0 for all pairs, so scores are 0
    k                            indicators of b
    v                            indicators of b       sign of the key
    dout       indicators of a                         1

    out[i, half + b] = p[i, b]                           dv[j, a] = p[a, j]
    dq[i, half + b]  = p[i, b] (sign[b] - mean[i])       dk[j, a] = p[a, j] (sign[j] - mean[a])

times the scale in dq and dk, with mean[i] = out[i, last]. Signs alternate along the sequence, so
that rows of more than one key have an average away from both. Without gradients all dimensions of
v are indicators.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.errors import RingloomError
from runtimes.arrays import Array
from runtimes.audit.case import Case
from runtimes.audit.questions import Answer, Indicators, Level, Question
from runtimes.audit.weights import Lanes

Ask = Callable[[Question], Answer]
MOST = 1 << 28  # cells of the matrices that are held at a time, 4 bytes each
UNSEEN = 0.125  # |sign - average| below which a gradient shows nothing of a pair


@dataclass(frozen=True, slots=True)
class Seen:
    """Weights that probing showed, by tensor ("out", "dq", "dk", "dv"), slots of q by columns.

    `blind`: pairs of which dq and dk show nothing, since their row attends one key, or keys of one
    sign; bool, [slots, columns].
    """

    weights: dict[str, Lanes]
    blind: Array


def probe(case: Case, ask: Ask, gradients: bool) -> Seen:
    """Asks for all weights; raises RingloomError where heads are too narrow, or rows too many."""
    q, kv = case.side("q"), case.side("kv")
    tensors = ("out", "dq", "dk", "dv") if gradients else ("out",)
    if (cells := len(tensors) * len(q.ranks) * kv.width) > MOST:
        raise RingloomError(
            f"probing {len(q.ranks)} queries and {kv.width} keys takes {cells * 4 / 2**30:.3g} GiB,"
            f" and at most {MOST * 4 / 2**30:.3g} GiB are held: audit a shorter sequence"
        )
    if gradients and min(case.work.head_dim // 2, (case.work.v_head_dim - 1) // 2) < 1:
        raise RingloomError("probing gradients takes head_dim 2 and v_head_dim 3 at least")
    weights = {name: Lanes(len(q.ranks), kv.width, case.work.dtype) for name in tensors}
    blind = np.zeros((len(q.ranks), kv.width), bool)
    if gradients:
        _both(case, ask, weights, blind)
    else:
        _ahead(case, ask, weights["out"])
    return Seen(weights, blind)


def amount(case: Case) -> float:
    """Returns the number that stands for 1: about the keys of a row, so that weights are near 1."""
    most = 12 if case.work.dtype == "float16" else 30
    return float(2 ** min(most, int(np.log2(max(1, case.work.kv_seq)))))


def _ahead(case: Case, ask: Ask, weights: Lanes) -> None:
    dim, high, kv = case.work.v_head_dim, amount(case), case.side("kv")
    for at in range(0, kv.width, dim):
        count = min(dim, kv.width - at)
        answer = ask(Question(v=(Indicators(at, count, 0, high),)))
        weights.put_columns(at, answer.out[..., :count] / high)


def _both(case: Case, ask: Ask, weights: dict[str, Lanes], blind: Array) -> None:
    work, q, kv = case.work, case.side("q"), case.side("kv")
    half = min(work.head_dim // 2, (work.v_head_dim - 1) // 2)
    last, scale, high, group = work.v_head_dim - 1, work.softmax_scale, amount(case), work.group
    sign = np.where(np.arange(kv.width) % 2, -1.0, 1.0)
    slots = np.argsort(q.columns)  # of each column of queries
    for at in range(0, max(q.width, kv.width), half):
        keys, queries = (min(half, max(0, side.width - at)) for side in (kv, q))
        answer = ask(
            Question(
                q=(Indicators(at, queries, 0, high),),
                k=(Indicators(at, keys, half, high),),
                v=(Indicators(at, keys, half, high), Level(sign, last)),
                dout=(
                    Indicators(at, queries, 0, high),
                    Level(np.ones(q.width), last),
                ),
            )
        )
        average = answer.out[..., last].astype(np.float64)  # [batch, heads, slots]
        columns, rows = slice(at, at + keys), slots[at : at + queries]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = seen_apart(sign[columns] - average[..., None])
            weights["out"].put_columns(at, answer.out[..., half : half + keys] / high)
            dq = answer.gradient("dq")[..., half : half + keys] / (high * scale) / apart
            weights["dq"].put_columns(at, dq)
            blind[:, columns] |= np.isinf(apart).any(axis=(0, 1))
            # dk and dv of a KV head are sums over its query heads
            apart = sign - average[:, :, rows, None]  # [batch, heads, a, keys]
            shared = apart.reshape(work.batch, work.kv_heads, group, *apart.shape[2:]).sum(2)
            shared = seen_apart(shared)
            dk = by_column(case, answer.gradient("dk")[..., :queries]).swapaxes(2, 3)
            weights["dk"].put_rows(rows, dk / (high * scale) / shared)
            dv = by_column(case, answer.gradient("dv")[..., :queries]).swapaxes(2, 3)
            weights["dv"].put_rows(rows, dv / (high * group))


def seen_apart(apart: Array) -> Array:
    """Returns infinity for differences of which a gradient shows nothing."""
    return np.where(np.abs(apart) < UNSEEN, np.inf, apart)


def by_column(case: Case, array: Array) -> Array:
    """Adds up what the slots of a column hold: [batch, heads, slots, n] to [.., columns, n]."""
    kv = case.side("kv")
    order = np.argsort(kv.columns, kind="stable")
    starts = np.searchsorted(kv.columns[order], np.arange(kv.width))
    return np.add.reduceat(array[:, :, order], starts, axis=2)
