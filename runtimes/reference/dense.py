"""Dense attention, slow and obvious: what every plan is compared with.

    s  = q k^T * scale, -inf where the mask forbids     p  = softmax(s)       o  = p v
    dv = p^T do     ds = p * (do v^T - rowsum(do * o))  dq = ds k * scale     dk = ds^T q * scale

A sink is one more column, a key that every query sees with this score and the value 0:

    p  = softmax([s, sink])     dsink = sum of ds in that column, over batch rows and queries

One query head of one batch row at a time. A query that sees nothing has o = 0 and lse = -inf, or
the sink, and no gradient passes through it.
"""

import numpy as np

from planner.workload import Workload
from runtimes.arrays import Array, check_arrays, dtype_of, wide


def forward(
    work: Workload,
    q: Array,
    k: Array,
    v: Array,
    precision: str = "float64",
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """Attention of whole arrays: (out [batch, heads, seq, v_head_dim], lse [batch, heads, seq]).

    Computed in float64, or, for a lower `precision`, in float32 and out rounded to it at the end;
    lse is not rounded. Raises PlanError for arrays that do not fit the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v)
    number = wide(precision)
    out = np.zeros((*q.shape[:3], work.v_head_dim), number)
    lse = np.zeros(q.shape[:3], number)
    sees = work.allowed(range(work.seq), range(work.kv_seq))
    for batch, head in np.ndindex(work.batch, work.heads):
        shared = batch, head // work.group
        queries, keys, values = (x.astype(number) for x in (q[batch, head], k[shared], v[shared]))
        scores = np.where(sees, queries @ keys.T * _scale(work, number), -np.inf)
        p, lse[batch, head] = softmax(_beside(scores, sinks, head))
        out[batch, head] = p[:, : work.kv_seq] @ values
    return out.astype(dtype_of(precision)), lse


def backward(
    work: Workload,
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    precision: str = "float64",
    sinks: Array | None = None,
) -> tuple[Array, ...]:
    """Gradients (dq, dk, dv) of sum(out * dout), in the shapes of q, k and v; with sinks, theirs.

    Computed in float64, or, for a lower `precision`, in float32 and rounded to it at the end.
    Raises PlanError for arrays that do not fit the workload.
    """
    check_arrays(work, sinks, q=q, k=k, v=v, dout=dout)
    number = wide(precision)
    dq, dk, dv = np.zeros(q.shape, number), np.zeros(k.shape, number), np.zeros(v.shape, number)
    dsinks = np.zeros(work.heads, number)
    sees, scale = work.allowed(range(work.seq), range(work.kv_seq)), _scale(work, number)
    for batch, head in np.ndindex(work.batch, work.heads):
        own, shared = (batch, head), (batch, head // work.group)
        queries, keys, values, do = (
            x.astype(number) for x in (q[own], k[shared], v[shared], dout[own])
        )
        scores = np.where(sees, queries @ keys.T * scale, -np.inf)
        weights, _ = softmax(_beside(scores, sinks, head))
        p, of_sink = weights[:, : work.kv_seq], weights[:, work.kv_seq :]
        rowsum = np.sum(do * (p @ values), axis=-1, keepdims=True)
        ds = p * (do @ values.T - rowsum)
        dq[own] = ds @ keys * scale
        dk[shared] += ds.T @ queries * scale
        dv[shared] += p.T @ do
        dsinks[head] -= np.sum(of_sink * rowsum)
    gradients = (dq, dk, dv) if sinks is None else (dq, dk, dv, dsinks)
    return tuple(x.astype(dtype_of(precision)) for x in gradients)


def _beside(scores: Array, sinks: Array | None, head: int) -> Array:
    """The scores of a head [seq, kv_seq], with those of its sink as a last column if it has one."""
    if sinks is None:
        return scores
    column = np.full((len(scores), 1), sinks[head], scores.dtype)
    return np.concatenate([scores, column], axis=1)


def softmax(scores: Array) -> tuple[Array, Array]:
    """Rows of weights [seq, columns] that sum to 1, or to 0 where all scores are -inf, and lse."""
    top = scores.max(axis=-1, keepdims=True)
    nothing = np.isneginf(top)
    weights = np.exp(scores - np.where(nothing, 0, top))
    total = np.where(nothing, 1, weights.sum(axis=-1, keepdims=True))
    return weights / total, (top + np.log(total))[:, 0]


def _scale(work: Workload, number: np.dtype[np.generic]) -> Array:
    """The factor on the scores, in the precision of the computation."""
    return np.asarray(work.softmax_scale, number)
