"""Attention in blocks of scores that stay in a cache, in jnp: for CPUs, float64, any shape."""

import jax.numpy as jnp
from jax import lax

from codegen.jax.parts.merge import wide

SCALE = 1.0


def attend_cpu(q, k, v, causal):
    """One block of rows after the other meets its blocks of keys."""

    def head(q, k, v):
        parts = []
        for n, rows in enumerate(spans(len(q))):
            q_rows = q[rows] * SCALE
            out, top, total = 0, jnp.full((len(q_rows), 1), -jnp.inf, q.dtype), 0
            for keys in spans(len(k))[: n + 1 if causal else None]:
                scores = q_rows @ k[keys].T
                if causal and keys == rows:
                    scores = jnp.where(jnp.tri(len(scores), dtype=bool), scores, -jnp.inf)
                before, top = top, jnp.maximum(top, scores.max(1, keepdims=True))
                p, old = jnp.exp(scores - top), jnp.exp(before - top)
                out, total = out * old + p @ v[keys], total * old + p.sum(1, keepdims=True)
            parts.append((out / total, top + jnp.log(total)))
        return [jnp.concatenate(x) for x in zip(*parts, strict=True)]

    out, lse = each_head(head, [q], [k, v])
    return out.reshape(q.shape), lse.reshape(*q.shape[:3], 1)


def attend_backward_cpu(dout, q, k, v, out, lse, causal):
    """Keys are rows of the scores and queries their columns: the products are faster so."""

    def head(q, dout, lse, delta, k, v):
        dq, dk, dv = [], [0] * len(spans(len(k))), [0] * len(spans(len(k)))
        for n, rows in enumerate(spans(len(q))):
            q_rows, dout_rows = q[rows] * SCALE, dout[rows]
            q_cols, dout_cols = lax.optimization_barrier((q_rows.T, dout_rows.T))
            dq.append(0)
            for m, keys in enumerate(spans(len(k))[: n + 1 if causal else None]):
                p = jnp.exp(k[keys] @ q_cols - lse[rows].T)
                if causal and keys == rows:
                    p = jnp.where(jnp.tri(len(p), dtype=bool).T, p, 0)
                ds = p * (v[keys] @ dout_cols - delta[rows].T)
                dq[n] += k[keys].T @ ds * SCALE
                dk[m] += ds @ q_rows
                dv[m] += p @ dout_rows
        return jnp.concatenate([x.T for x in dq]), jnp.concatenate(dk), jnp.concatenate(dv)

    delta = (dout.astype(wide(q)) * out).sum(-1, keepdims=True)
    dq, *dkv = each_head(head, [q, dout, lse, delta], [k, v])
    return dq.reshape(q.shape), *(x.reshape(*k.shape[:2], -1, *k.shape[2:]).sum(2) for x in dkv)


def each_head(function, queries, keys):
    """function(*queries, *keys) of [tokens, width] arrays, for one query head after the other."""
    group = queries[0].shape[1] // keys[0].shape[1]
    queries, keys = ([x.reshape(-1, *x.shape[2:]) for x in xs] for xs in (queries, keys))

    def head(n):
        arrays = [x[n] for x in queries] + [x[n // group] for x in keys]
        return function(*(x.astype(wide(x)) for x in arrays))

    return lax.map(head, jnp.arange(len(queries[0])))


def spans(tokens):
    """Slices of the tokens, 512 or, from 4096 tokens on, an eighth."""
    size = max(512, -(-tokens // 8))
    return [slice(at, min(at + size, tokens)) for at in range(0, tokens, size)]
