"""Dense attention, slow and obvious: what every plan is compared with.

    s  = q k^T * scale, -inf where the mask forbids     p  = softmax(s)       o  = p v
    dv = p^T do     ds = p * (do v^T - rowsum(do * o))  dq = ds k * scale     dk = ds^T q * scale

A sink is one more column, a key that every query sees with this score and the value 0:

    p  = softmax([s, sink])     dsink = sum of ds in that column, over batch rows and queries

One query head of one batch row at a time. A query that sees nothing has o = 0 and lse = -inf, or
the sink, and no gradient passes through it.
"""

from collections.abc import Iterator

import numpy as np

from planner.workload import Workload
from runtimes.arrays import Array, check_arrays, dtype_of, wide

Place = tuple[int, int]  # batch row and head


def forward(
    work: Workload,
    q: Array,
    k: Array,
    v: Array,
    precision: str = "float64",
    sinks: Array | None = None,
    rows: Array | None = None,
) -> tuple[Array, Array]:
    """Attention of whole arrays: (out [batch, heads, seq, v_head_dim], lse [batch, heads, seq]).

    With `rows`, positions of queries, those of these queries alone, in their order.
    Computed in float64, or, for a lower `precision`, in float32 and out rounded to it at the end;
    lse is not rounded. Raises PlanError for arrays that do not fit the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v)
    number = wide(precision)
    rows = np.arange(work.seq) if rows is None else rows
    out = np.zeros((*q.shape[:2], len(rows), work.v_head_dim), number)
    lse = np.zeros(out.shape[:3], number)
    for own, shared, p, _, row_lse in _weights(work, q, k, sinks, number, rows):
        out[own], lse[own] = p @ v[shared].astype(number), row_lse
    return out.astype(dtype_of(precision)), lse


def backward(
    work: Workload,
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    precision: str = "float64",
    sinks: Array | None = None,
    rows: Array | None = None,
) -> tuple[Array, ...]:
    """Gradients (dq, dk, dv) of sum(out * dout), in the shapes of q, k and v; with sinks, theirs.

    With `rows`, positions of queries, dq of these queries alone, and their share of the others.
    Computed in float64, or, for a lower `precision`, in float32 and rounded to it at the end, from
    outputs that were rounded to it. Raises PlanError for arrays that do not fit the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v, dout=dout)
    number = wide(precision)
    scale = np.asarray(work.softmax_scale, number)
    rows = np.arange(work.seq) if rows is None else rows
    dq, dk, dv = (np.zeros(x.shape, number) for x in (q[:, :, rows], k, v))
    dsinks = np.zeros(work.heads, number)
    for own, shared, p, of_sink, _ in _weights(work, q, k, sinks, number, rows):
        values, do = v[shared].astype(number), dout[own][rows].astype(number)
        out = (p @ values).astype(dtype_of(precision)).astype(number)
        rowsum = np.sum(do * out, axis=-1, keepdims=True)
        ds = p * (do @ values.T - rowsum)
        dq[own] = ds @ k[shared].astype(number) * scale
        dk[shared] += ds.T @ q[own][rows].astype(number) * scale
        dv[shared] += p.T @ do
        dsinks[own[1]] -= np.sum(of_sink * rowsum)
    gradients = (dq, dk, dv) if sinks is None else (dq, dk, dv, dsinks)
    return tuple(x.astype(dtype_of(precision)) for x in gradients)


def _weights(
    work: Workload,
    q: Array,
    k: Array,
    sinks: Array | None,
    number: np.dtype[np.generic],
    rows: Array,
) -> Iterator[tuple[Place, Place, Array, Array, Array]]:
    """Yields (query head, its KV head, weights of keys, of the sink, lse) of every query head."""
    sees = work.allowed(rows, range(work.kv_seq))
    scale = np.asarray(work.softmax_scale, number)
    for batch, head in np.ndindex(work.batch, work.heads):
        shared = batch, head // work.group
        scores = q[batch, head][rows].astype(number) @ k[shared].astype(number).T * scale
        logits = np.zeros(0) if sinks is None else sinks[[head]]
        columns = np.broadcast_to(logits.astype(number), (len(rows), len(logits)))
        weights, lse = softmax(np.hstack([np.where(sees, scores, -np.inf), columns]))
        yield (batch, head), shared, weights[:, : work.kv_seq], weights[:, work.kv_seq :], lse


def softmax(scores: Array) -> tuple[Array, Array]:
    """Rows of weights [seq, columns] that sum to 1, or to 0 where all scores are -inf, and lse."""
    top = scores.max(axis=-1, keepdims=True)
    nothing = np.isneginf(top)
    weights = np.exp(scores - np.where(nothing, 0, top))
    total = np.where(nothing, 1, weights.sum(axis=-1, keepdims=True))
    return weights / total, (top + np.log(total))[:, 0]
