"""Dense attention, slow and obvious: the reference for every plan.

    s  = q k^T * scale, -inf where the mask forbids     p  = softmax(s)       o  = p v
    dv = p^T do     ds = p * (do v^T - rowsum(do * o))  dq = ds k * scale     dk = ds^T q * scale

A sink is one more column: a key to which every query attends with this score and the value 0:

    p  = softmax([s, sink])     dsink = sum of ds in that column, over batch rows and queries

It computes one query head of one batch row at a time, and some queries at a time if the sequence is
long. A query without keys has o = 0 and lse = -inf, or lse = sink, and zero gradients.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, check_arrays, dtype_of, wide

Place = tuple[int, int]  # batch row and head
PAIRS = 1 << 26  # of queries and keys at a time: half a gigabyte of scores


def forward(
    work: Workload,
    q: Array,
    k: Array,
    v: Array,
    precision: str = "float64",
    sinks: Array | None = None,
    rows: Array | None = None,
) -> tuple[Array, Array]:
    """Returns out [batch, heads, seq, v_head_dim] and lse [batch, heads, seq] of whole arrays.

    `rows` selects queries by their positions; results are then in this order. Computes in float64,
    or for a lower `precision` in float32, and rounds out to it; lse is not rounded. Raises
    PlanError for arrays that do not fit the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v)
    number = wide(precision)
    rows = np.arange(work.seq) if rows is None else rows
    out = np.zeros((*q.shape[:2], len(rows), work.v_head_dim), number)
    lse = np.zeros(out.shape[:3], number)
    for at, own, shared, p, _, row_lse in _weights(work, q, k, sinks, number, rows):
        out[own][at], lse[own][at] = p @ v[shared].astype(number), row_lse
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
    """Returns the gradients (dq, dk, dv) of sum(out * dout), and dsinks after these with sinks.

    `rows` selects queries by their positions: returns dq of these queries, and their share of the
    other gradients. Computes in float64, or for a lower `precision` in float32 from outputs rounded
    to it, and rounds the gradients to it. Raises PlanError for arrays that do not fit the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v, dout=dout)
    number = wide(precision)
    scale = np.asarray(work.softmax_scale, number)
    rows = np.arange(work.seq) if rows is None else rows
    dq, dk, dv = (np.zeros(x.shape, number) for x in (q[:, :, rows], k, v))
    dsinks = np.zeros(work.heads, number)
    for at, own, shared, p, of_sink, _ in _weights(work, q, k, sinks, number, rows):
        values, do = v[shared].astype(number), dout[own][rows[at]].astype(number)
        out = (p @ values).astype(dtype_of(precision)).astype(number)
        rowsum = np.sum(do * out, axis=-1, keepdims=True)
        ds = p * (do @ values.T - rowsum)
        dq[own][at] = ds @ k[shared].astype(number) * scale
        dk[shared] += ds.T @ q[own][rows[at]].astype(number) * scale
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
) -> Iterator[tuple[slice, Place, Place, Array, Array, Array]]:
    """Yields (rows, query head, its KV head, weights of keys, weights of the sink, lse)."""
    scale = np.asarray(work.softmax_scale, number)
    for at in bands(len(rows), work.kv_seq):
        sees = work.allowed(rows[at], range(work.kv_seq))
        for batch, head in np.ndindex(work.batch, work.heads):
            shared = batch, head // work.group
            scores = q[batch, head][rows[at]].astype(number) @ k[shared].astype(number).T * scale
            logits = np.zeros(0) if sinks is None else sinks[[head]]
            columns = np.broadcast_to(logits.astype(number), (len(sees), len(logits)))
            weights, lse = softmax(np.hstack([np.where(sees, scores, -np.inf), columns]))
            of_keys, of_sink = weights[:, : work.kv_seq], weights[:, work.kv_seq :]
            yield at, (batch, head), shared, of_keys, of_sink, lse


def bands(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices of consecutive rows that have at most `PAIRS` entries, or one row."""
    height = max(1, PAIRS // max(1, columns))
    return (slice(at, at + height) for at in range(0, rows, height))


def softmax(scores: Array) -> tuple[Array, Array]:
    """Returns weights [seq, columns] and lse; rows sum to 1, or to 0 if all scores are -inf."""
    top = scores.max(axis=-1, keepdims=True)
    nothing = np.isneginf(top)
    weights = np.exp(scores - np.where(nothing, 0, top))
    total = np.where(nothing, 1, weights.sum(axis=-1, keepdims=True))
    return weights / total, (top + np.log(total))[:, 0]
