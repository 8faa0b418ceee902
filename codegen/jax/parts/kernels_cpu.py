"""Attention in jnp by cache-sized blocks of scores: for CPUs, float64 and any shape."""

import jax.numpy as jnp
from jax import lax

from ringloom.codegen.jax.parts.masked import accum_dtype

SCALE = 1.0
ALL_PLATFORMS = True


if not ALL_PLATFORMS:

    def on_platform(direction, causal, *arrays):
        """Run the forward kernel (direction 0) or the backward kernel (1)."""
        return (attend_cpu, attend_backward_cpu)[direction](causal, *arrays)


def attend_cpu(causal, q, k, v):
    """Compute attention of each block of queries over blocks of keys, with a running softmax."""

    def head(q, k, v):
        parts = []
        for n, rows in enumerate(spans(q, causal)):
            out, top, total = 0, -jnp.inf, 0
            for keys in spans(k, causal)[: n + 1 if causal else None]:
                scores = q[rows] * SCALE @ k[keys].T
                if causal and keys == rows:
                    scores = jnp.where(jnp.tri(len(scores), dtype=bool), scores, -jnp.inf)
                before, top = top, jnp.maximum(top, scores.max(1, keepdims=True))
                p, old = jnp.exp(scores - top), jnp.exp(before - top)
                out, total = out * old + p @ v[keys], total * old + p.sum(1, keepdims=True)
            parts.append((out / total, top + jnp.log(total)))
        return [jnp.concatenate(x) for x in zip(*parts, strict=True)]

    out, lse = each_head(head, [q], [k, v])
    return out.reshape(q.shape), lse.reshape(*q.shape[:3], 1)


def attend_backward_cpu(causal, q, dout, out, lse, k, v):
    """Return partial dq, dk and dv.

    Scores have keys as rows: XLA multiplies copies of the transposed factors faster.
    """

    def head(q, dout, lse, delta, k, v):
        dq, dk, dv = ([0] * len(spans(x, causal)) for x in (q, k, v))
        q_across, dout_across, k_across = lax.optimization_barrier((q.T * SCALE, dout.T, k.T))
        for n, rows in enumerate(spans(q, causal)):
            for m, keys in enumerate(spans(k, causal)[: n + 1 if causal else None]):
                p = jnp.exp(k[keys] @ q_across[:, rows] - lse[rows].T)
                if causal and keys == rows:
                    p = jnp.where(jnp.tri(len(p), dtype=bool).T, p, 0)
                ds = p * (v[keys] @ dout_across[:, rows] - delta[rows].T) * SCALE
                dq[n] += k_across[:, keys] @ ds
                dk[m] += ds @ q[rows]
                dv[m] += p @ dout[rows]
        return jnp.concatenate(dq, 1), jnp.concatenate(dk), jnp.concatenate(dv)

    delta = (dout.astype(accum_dtype(q)) * out).sum(-1, keepdims=True)
    dq, *dkv = each_head(head, [q, dout, lse, delta], [k, v])
    dkv = (x.reshape(*k.shape[:2], -1, *k.shape[2:]).sum(2) for x in dkv)
    return jnp.swapaxes(dq, 1, 2).reshape(q.shape), *dkv


def spans(x, causal):
    """Return at most 8 slices of at least 512 tokens; 256 if causal, to skip masked blocks."""
    size = max(256 if causal else 512, -(-len(x) // 8))
    return [slice(at, min(at + size, len(x))) for at in range(0, len(x), size)]


def each_head(function, queries, keys):
    """Map function(*queries, *keys) over query heads; its arguments are [tokens, width]."""
    keys = [jnp.repeat(x, queries[0].shape[1] // x.shape[1], 1) for x in keys]
    flat = [x.reshape(-1, *x.shape[2:]).astype(accum_dtype(x)) for x in [*queries, *keys]]
    return lax.map(lambda arrays: function(*arrays), flat)
