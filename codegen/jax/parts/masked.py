"""Attention under a mask of positions, block by block, in jnp; and what all kernels share."""

from functools import partial

import jax.numpy as jnp
from jax import lax

SCALE = 1.0
SEQ = KV_SEQ = 0
STATS = False


def attend_masked(q, kv, rows, cols, seen):
    """Output and log-sum-exp [batch, heads, rows, 1] over the pairs that a mask allows, wide.

    rows, cols: positions of the queries and keys, -1 is padding. seen: the mask, a function of both
    as `allowed`. A query that sees none of these keys has output 0 and log-sum-exp -inf.
    """

    def ways(q, kv, i, j):
        pairs, (k, v) = visible(i, j, seen), kv

        def part():
            scores = jnp.where(pairs, product("bhgid,bhjd->bhgij", q, k) * SCALE, -jnp.inf)
            top = jnp.maximum(scores.max(-1, keepdims=True), jnp.finfo(scores.dtype).min)
            p = jnp.exp(scores - top)
            total = p.sum(-1, keepdims=True)
            out = product("bhgij,bhjd->bhgid", p, v) / jnp.where(total == 0, 1, total)
            return out, top + jnp.log(total)

        return pairs.any(), [part]

    out, lse = merged_blocks(ways, grouped(q, kv[0]), kv, rows, cols)
    return joined(out, q), joined(lse, q)


def attend_masked_backward(queries, kv, rows, cols, seen):
    """Shares of these pairs in dq and dkv; lse and delta, sums of out * dout, are of all keys."""
    if STATS:
        q, dout, lse, delta = queries
    else:
        q, dout, out, lse = queries
        delta = (dout.astype(wide(q)) * out).sum(-1, keepdims=True)

    def ways(queries, kv, i, j):
        pairs, (q, dout, lse, delta), (k, v) = visible(i, j, seen), queries, kv

        def part():
            scores = product("bhgid,bhjd->bhgij", q, k) * SCALE
            p = jnp.where(pairs, jnp.exp(scores - lse), 0)
            ds = p * (product("bhgid,bhjd->bhgij", dout, v) - delta) * SCALE
            dk, dv = (product("bhgij,bhgid->bhjd", x, y) for x, y in ((ds, q), (p, dout)))
            return product("bhgij,bhjd->bhgid", ds, k), (dk, dv)

        return pairs.any(), [part]

    groups = [grouped(x, kv[0]) for x in (q, dout, lse, delta)]
    dq, dkv = gradients_of_blocks(ways, groups, kv, rows, cols)
    return joined(dq, q), tuple(joined(x, y) for x, y in zip(dkv, kv, strict=True))


def merged_blocks(ways, q, kv, rows, cols, size=None):
    """Partial attention of each block of queries to all blocks of keys.

    ways(q, kv, i, j): which of several functions gives that of two blocks, from 1 on, 0 for none,
    and these functions.
    """
    keys = [in_blocks(x, size) for x in (*kv, cols[:, None])]

    def block_of_rows(block):
        q, i = block

        def meet(sums, block):
            *kv, j = block
            which, parts = ways(q, kv, i, j)
            merged = [lambda part=part: merge(*sums, *part()) for part in parts]
            return lax.switch(which.astype(int), [lambda: sums, *merged]), None

        out = jnp.zeros((*q.shape[:-1], kv[1].shape[-1]), wide(q))
        return lax.scan(meet, (out, jnp.full_like(out[..., :1], -jnp.inf)), keys)[0]

    return lax.map(block_of_rows, (in_blocks(q, size), in_blocks(rows[:, None], size)))


def gradients_of_blocks(ways, queries, kv, rows, cols, size=None):
    """Partial gradients of all blocks of queries and of keys; `ways` as for `merged_blocks`."""
    keys = [in_blocks(x, size) for x in (*kv, cols[:, None])]

    def block_of_rows(dkv, block):
        *queries, i = block

        def meet(dq, block):
            (*kv, j), dkv = block
            which, parts = ways(queries, kv, i, j)

            def added(part):
                dq_part, (dk, dv) = part()
                return dq + dq_part, (dkv[0] + dk, dkv[1] + dv)

            branches = [partial(added, part) for part in parts]
            return lax.switch(which.astype(int), [lambda: (dq, tuple(dkv)), *branches])

        dq = jnp.zeros(queries[0].shape, wide(queries[0]))
        dq, dkv = lax.scan(meet, dq, (keys, dkv))
        return dkv, dq

    dkv = tuple(jnp.zeros(x.shape, wide(x)) for x in keys[:2])
    blocks = [in_blocks(x, size) for x in (*queries, rows[:, None])]
    dkv, dq = lax.scan(block_of_rows, dkv, blocks)
    return dq, dkv


def visible(i, j, seen):
    """Which pairs of positions [rows, 1] and [keys, 1] count."""
    return (i >= 0) & (j.T >= 0) & seen(i + (KV_SEQ - SEQ), j.T)


def product(form, a, b):
    """The product of a with inputs b, in the inputs' type, with sums of the wide one."""
    a = a.astype(b.dtype)
    return jnp.einsum(form, a, b, preferred_element_type=wide(b), precision="highest")


def grouped(x, k):
    """[batch, KV heads, query heads of each, rows, width]."""
    return x.reshape(*k.shape[:2], x.shape[1] // k.shape[1], *x.shape[2:])


def in_blocks(x, size=None):
    """[blocks, ..., tokens, width]: at most eight blocks of 256 tokens or more, then -1."""
    tokens = x.shape[-2]
    size = size or max(1, min(tokens, max(256, -(-tokens // 8))))
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -tokens % size), (0, 0)], constant_values=-1)
    return jnp.moveaxis(x.reshape(*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1]), -3, 0)


def joined(blocks, like):
    """Blocks one after the other, with the heads and tokens of another array."""
    x = jnp.moveaxis(blocks, 0, -3)
    x = x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., : like.shape[2], :]
    return x.reshape(*like.shape[:3], x.shape[-1])


def wide(x):
    """The type of partial sums: float32, or wider where the inputs are."""
    return jnp.promote_types(x.dtype, jnp.float32)


def merge(out, lse, part, part_lse):
    """Output and log-sum-exp over two disjoint sets of keys; a row without keys has lse -inf."""
    total = jnp.logaddexp(lse, part_lse)
    share = jnp.exp(part_lse - jnp.maximum(total, jnp.finfo(total.dtype).min))
    return out + share * (part - out), total


def with_output(queries):
    """Visiting queries (q, dout, lse, delta) with an `out` for kernels that take it.

    They compute delta, the sum of dout * out along a row, of it and read it for nothing else: any
    `out` with the same sum gives the same gradients. This one is along dout.
    """
    q, dout, lse, delta = queries
    largest = jnp.abs(dout).max(-1, keepdims=True).astype(delta.dtype)
    largest = largest.clip(jnp.finfo(delta.dtype).tiny)
    unit = dout / largest
    out = unit * (delta / largest / (unit * unit).sum(-1, keepdims=True).clip(1))
    return q, dout, out, lse
