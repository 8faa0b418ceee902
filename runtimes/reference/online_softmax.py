"""Computes partial attention of one rectangle, and merges partial results.

attend       (o, lse) over some keys, with o normalised: o = sum_j exp(s_j - lse) v_j
merge        lse = log(exp(lse1) + exp(lse2))      o = exp(lse1 - lse) o1 + exp(lse2 - lse) o2
with_sink    merges a key with the value 0 whose score is the sink
gradients    p = exp(s - lse) with the lse over all keys, so that partial gradients add up

Shapes: q [batch, heads, q tokens, head_dim]; k [batch, heads, kv tokens, head_dim]; o and dout have
the tokens of q, v the tokens of k, all three with v_head_dim; lse, rowsum [batch, heads, q tokens];
allowed bool [q tokens, kv tokens]. k and v have one head per query head. Any length may be 0.
"""

import numpy as np

from ringloom.runtimes.arrays import Array


def attend(q: Array, k: Array, v: Array, allowed: Array, scale: float) -> tuple[Array, Array]:
    """Returns (o, lse) over these keys; (0, -inf) for queries without allowed keys."""
    scores = _scores(q, k, allowed, scale)
    top = _finite(scores.max(axis=-1, initial=-np.inf))
    weights = np.exp(scores - top[..., None])
    total = weights.sum(axis=-1)
    is_empty = total == 0
    total = np.where(is_empty, 1, total)
    lse = np.where(is_empty, -np.inf, top + np.log(total))
    return (weights @ v) / total[..., None], lse


def merge(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, Array]:
    """Merges (o, lse) over two disjoint sets of keys; associative and commutative."""
    (o1, lse1), (o2, lse2) = first, second
    lse = np.logaddexp(lse1, lse2)
    top = _finite(lse)
    o = np.exp(lse1 - top)[..., None] * o1 + np.exp(lse2 - top)[..., None] * o2
    return o, lse


def gradients(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    lse: Array,
    rowsum: Array,
    allowed: Array,
    scale: float,
) -> tuple[Array, Array, Array]:
    """Returns the contributions of these queries and keys to dq, dk and dv, per query head."""
    p = np.exp(_scores(q, k, allowed, scale) - _finite(lse)[..., None])
    ds = p * (dout @ v.swapaxes(-1, -2) - rowsum[..., None]) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout


def with_sink(o: Array, lse: Array, sinks: Array) -> tuple[Array, Array]:
    """Returns (o, lse) over all keys and a sink; sinks [heads], one logit per query head."""
    return merge((o, lse), (np.zeros_like(o), np.broadcast_to(sinks[:, None], lse.shape)))


def sink_gradient(dout: Array, o: Array, lse: Array, sinks: Array) -> Array:
    """Returns the gradient of the sinks, [heads], from o and lse that include the sinks."""
    weights = np.exp(sinks[:, None] - _finite(lse))
    gradient: Array = -np.einsum("bhs,bhsd,bhsd->h", weights, dout, o)
    return gradient


def _scores(q: Array, k: Array, allowed: Array, scale: float) -> Array:
    return np.where(allowed, q @ k.swapaxes(-1, -2) * scale, -np.inf)


def _finite(lse: Array) -> Array:
    """Replaces -inf by 0, so that exp(-inf - lse) is 0 instead of undefined."""
    return np.where(np.isneginf(lse), 0, lse)
