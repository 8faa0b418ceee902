"""Computes dense attention by its definition, as the reference for every plan.

    s  = q k^T * scale, -inf for masked pairs           p  = softmax(s)       o  = p v
    dv = p^T do     ds = p * (do v^T - rowsum(do * o))  dq = ds k * scale     dk = ds^T q * scale

A sink is an additional column: a key with this score and the value 0, to which every query attends:

    p  = softmax([s, sink])     dsink = sum of ds in that column, over batch rows and queries

Each query head of each batch row is computed separately, and long sequences in groups of queries. A
query without keys has o = 0, lse = -inf (or the sink) and zero gradients.
"""

from collections.abc import Iterator

import numpy as np

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, check_arrays, dtype_of, sum_dtype_of

Lane = tuple[int, int]  # batch row and head
MAX_SCORES = 1 << 26  # scores to compute at a time: half a gigabyte


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

    `rows` selects queries by position; results are then in this order. Computes in float64, or for
    a lower `precision` in float32, and rounds out to `precision`; lse is not rounded. Raises
    RingloomError for arrays that do not match the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v)
    sum_dtype = sum_dtype_of(precision)
    rows = np.arange(work.seq) if rows is None else rows
    out = np.zeros((*q.shape[:2], len(rows), work.v_head_dim), sum_dtype)
    lse = np.zeros(out.shape[:3], sum_dtype)
    for band, head, kv_head, p, _, row_lse in _weights(work, q, k, sinks, sum_dtype, rows):
        out[head][band], lse[head][band] = p @ v[kv_head].astype(sum_dtype), row_lse
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
    """Returns the gradients (dq, dk, dv) of sum(out * dout), followed by dsinks if there are sinks.

    `rows` selects queries by position: returns dq of these queries, and their contributions to the
    other gradients. Computes in float64, or for a lower `precision` in float32 from outputs rounded
    to `precision`, and rounds the gradients to `precision`. Raises RingloomError for arrays that do
    not match the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v, dout=dout)
    sum_dtype = sum_dtype_of(precision)
    scale = np.asarray(work.softmax_scale, sum_dtype)
    rows = np.arange(work.seq) if rows is None else rows
    dq, dk, dv = (np.zeros(x.shape, sum_dtype) for x in (q[:, :, rows], k, v))
    dsinks = np.zeros(work.heads, sum_dtype)
    for band, head, kv_head, p, sink_weights, _ in _weights(work, q, k, sinks, sum_dtype, rows):
        values, do = v[kv_head].astype(sum_dtype), dout[head][rows[band]].astype(sum_dtype)
        out = (p @ values).astype(dtype_of(precision)).astype(sum_dtype)
        rowsum = np.sum(do * out, axis=-1, keepdims=True)
        ds = p * (do @ values.T - rowsum)
        dq[head][band] = ds @ k[kv_head].astype(sum_dtype) * scale
        dk[kv_head] += ds.T @ q[head][rows[band]].astype(sum_dtype) * scale
        dv[kv_head] += p.T @ do
        dsinks[head[1]] -= np.sum(sink_weights * rowsum)
    gradients = (dq, dk, dv) if sinks is None else (dq, dk, dv, dsinks)
    return tuple(x.astype(dtype_of(precision)) for x in gradients)


def _weights(
    work: Workload,
    q: Array,
    k: Array,
    sinks: Array | None,
    sum_dtype: np.dtype[np.generic],
    rows: Array,
) -> Iterator[tuple[slice, Lane, Lane, Array, Array, Array]]:
    """Yields (rows, query head, its KV head, weights of keys, weights of the sink, lse)."""
    scale = np.asarray(work.softmax_scale, sum_dtype)
    for band in bands(len(rows), work.kv_seq):
        allowed = work.allowed(rows[band], range(work.kv_seq))
        for batch, head in np.ndindex(work.batch, work.heads):
            kv_head = batch, head // work.group
            scores = (
                q[batch, head][rows[band]].astype(sum_dtype)
                @ k[kv_head].astype(sum_dtype).T
                * scale
            )
            logits = np.zeros(0) if sinks is None else sinks[[head]]
            columns = np.broadcast_to(logits.astype(sum_dtype), (len(allowed), len(logits)))
            weights, lse = softmax(np.hstack([np.where(allowed, scores, -np.inf), columns]))
            key_weights, sink_weights = weights[:, : work.kv_seq], weights[:, work.kv_seq :]
            yield band, (batch, head), kv_head, key_weights, sink_weights, lse


def bands(rows: int, columns: int) -> Iterator[slice]:
    """Yields slices of consecutive rows with at most `MAX_SCORES` entries, or of one row."""
    height = max(1, MAX_SCORES // max(1, columns))
    return (slice(start, start + height) for start in range(0, rows, height))


def softmax(scores: Array) -> tuple[Array, Array]:
    """Returns weights [seq, columns] and lse; rows sum to 1, or to 0 if all scores are -inf."""
    top = scores.max(axis=-1, keepdims=True)
    is_empty = np.isneginf(top)
    weights = np.exp(scores - np.where(is_empty, 0, top))
    total = np.where(is_empty, 1, weights.sum(axis=-1, keepdims=True))
    return weights / total, (top + np.log(total))[:, 0]
