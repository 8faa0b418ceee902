"""Attention in blocks of scores that stay in a cache, in jnp: for CPUs, float64, any shape."""

import jax.numpy as jnp
from jax import lax

from codegen.jax.parts.merge import wide

SCALE = 1.0


def spans(tokens):
    """At most eight slices of the tokens, of at least 512."""
    size = max(512, -(-tokens // 8))
    return [slice(at, min(at + size, tokens)) for at in range(0, tokens, size)]


def keys_seen(rows, cols, causal):
    """Slices of the keys that some of these rows see, and which pairs count if not all."""
    for keys in spans(cols):
        if not causal or keys.stop <= rows.start + 1:
            yield keys, None
        elif keys.start < rows.stop:
            i, j = (jnp.arange(x.start, x.stop) for x in (rows, keys))
            yield keys, i[:, None] >= j


def each_head(function, queries, keys):
    """function(*queries, *keys) of [tokens, width] arrays, for one query head after the other."""
    group = queries[0].shape[1] // keys[0].shape[1]
    queries, keys = ([x.reshape(-1, *x.shape[2:]) for x in xs] for xs in (queries, keys))

    def head(n):
        some = [x[n] for x in queries] + [x[n // group] for x in keys]
        return function(*(x.astype(wide(x)) for x in some))

    return lax.map(head, jnp.arange(len(queries[0])))


def attend_cpu(q, k, v, causal):
    """One block of rows after the other meets its blocks of keys."""

    def head(q, k, v):
        parts = []
        for rows in spans(len(q)):
            some = q[rows] * SCALE
            out, top, total = 0, jnp.full((len(some), 1), -jnp.inf, q.dtype), 0
            for keys, seen in keys_seen(rows, len(k), causal):
                scores = some @ k[keys].T
                scores = scores if seen is None else jnp.where(seen, scores, -jnp.inf)
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
        dq, dkv = [], {}
        for rows in spans(len(q)):
            some, dsome = q[rows] * SCALE, dout[rows]
            turned, dturned = lax.optimization_barrier((some.T, dsome.T))
            dsum = 0
            for keys, seen in keys_seen(rows, len(k), causal):
                p = jnp.exp(k[keys] @ turned - lse[rows].T)
                p = p if seen is None else jnp.where(seen.T, p, 0)
                ds = p * (v[keys] @ dturned - delta[rows].T)
                dk, dv = dkv.get(keys.start, (0, 0))
                dkv[keys.start] = dk + ds @ some, dv + p @ dsome
                dsum = dsum + k[keys].T @ ds
            dq.append(dsum.T * SCALE)
        return jnp.concatenate(dq), *(jnp.concatenate(x) for x in zip(*dkv.values(), strict=True))

    delta = (dout.astype(wide(q)) * out).sum(-1, keepdims=True)
    dq, *dkv = each_head(head, [q, dout, lse, delta], [k, v])
    return dq.reshape(q.shape), *(x.reshape(*k.shape[:2], -1, *k.shape[2:]).sum(2) for x in dkv)
