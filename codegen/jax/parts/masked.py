"""Attention under a mask of positions, block by block in jnp, and helpers of all kernels."""

from functools import partial

import jax.numpy as jnp
from jax import lax

SCALE = 1.0
SEQ = KV_SEQ = 0
STATS = False


def attend_masked(q, kv, rows, cols, seen):
    """Return output and log-sum-exp [batch, heads, rows, 1] over the pairs that a mask allows.

    rows, cols: positions of the queries and keys, -1 for padding. seen: the mask as a function of
    both, like `allowed`. A query that sees none of these keys has output 0 and log-sum-exp -inf.
    """

    def branches(q, kv, i, j):
        pairs, (k, v) = visible_pairs(i, j, seen), kv

        def part():
            scores = jnp.where(pairs, product("bhgid,bhjd->bhgij", q, k) * SCALE, -jnp.inf)
            top = jnp.maximum(scores.max(-1, keepdims=True), jnp.finfo(scores.dtype).min)
            p = jnp.exp(scores - top)
            total = p.sum(-1, keepdims=True)
            out = product("bhgij,bhjd->bhgid", p, v) / jnp.where(total == 0, 1, total)
            return out, top + jnp.log(total)

        return pairs.any(), [part]

    out, lse = merge_blocks(branches, group_heads(q, kv[0]), kv, rows, cols)
    return join_blocks(out, q), join_blocks(lse, q)


def attend_masked_backward(queries, kv, rows, cols, seen):
    """Return partial dq and (dk, dv); lse and delta, the row sums of out * dout, are final."""
    if STATS:
        q, dout, lse, delta = queries
    else:
        q, dout, out, lse = queries
        delta = (dout.astype(accum_dtype(q)) * out).sum(-1, keepdims=True)

    def branches(queries, kv, i, j):
        pairs, (q, dout, lse, delta), (k, v) = visible_pairs(i, j, seen), queries, kv

        def part():
            scores = product("bhgid,bhjd->bhgij", q, k) * SCALE
            p = jnp.where(pairs, jnp.exp(scores - lse), 0)
            ds = p * (product("bhgid,bhjd->bhgij", dout, v) - delta) * SCALE
            dk, dv = (product("bhgij,bhgid->bhjd", x, y) for x, y in ((ds, q), (p, dout)))
            return product("bhgij,bhjd->bhgid", ds, k), (dk, dv)

        return pairs.any(), [part]

    groups = [group_heads(x, kv[0]) for x in (q, dout, lse, delta)]
    dq, dkv = sum_gradients(branches, groups, kv, rows, cols)
    return join_blocks(dq, q), tuple(join_blocks(x, y) for x, y in zip(dkv, kv, strict=True))


def merge_blocks(branches, q, kv, rows, cols, size=None):
    """Return partial attention of all blocks of queries to all blocks of keys.

    branches(q, kv, i, j) returns a number n and functions that attend these two blocks: the n-th
    function runs; none if n is 0, because nothing is visible.
    """
    keys = [in_blocks(x, size) for x in (*kv, cols[:, None])]

    def block_of_rows(block):
        q, i = block

        def attend_block(sums, block):
            *kv, j = block
            number, parts = branches(q, kv, i, j)
            merges = [lambda part=part: merge(*sums, *part()) for part in parts]
            return lax.switch(number.astype(int), [lambda: sums, *merges]), None

        out = jnp.zeros((*q.shape[:-1], kv[1].shape[-1]), accum_dtype(q))
        return lax.scan(attend_block, (out, jnp.full_like(out[..., :1], -jnp.inf)), keys)[0]

    return lax.map(block_of_rows, (in_blocks(q, size), in_blocks(rows[:, None], size)))


def sum_gradients(branches, queries, kv, rows, cols, size=None):
    """Return partial gradients of all blocks; `branches` as in `merge_blocks`."""
    keys = [in_blocks(x, size) for x in (*kv, cols[:, None])]

    def block_of_rows(dkv, block):
        *queries, i = block

        def attend_block(dq, block):
            (*kv, j), dkv = block
            number, parts = branches(queries, kv, i, j)

            def add_part(part):
                dq_part, (dk, dv) = part()
                return dq + dq_part, (dkv[0] + dk, dkv[1] + dv)

            sums = [partial(add_part, part) for part in parts]
            return lax.switch(number.astype(int), [lambda: (dq, tuple(dkv)), *sums])

        dq = jnp.zeros(queries[0].shape, accum_dtype(queries[0]))
        dq, dkv = lax.scan(attend_block, dq, (keys, dkv))
        return dkv, dq

    dkv = tuple(jnp.zeros(x.shape, accum_dtype(x)) for x in keys[:2])
    blocks = [in_blocks(x, size) for x in (*queries, rows[:, None])]
    dkv, dq = lax.scan(block_of_rows, dkv, blocks)
    return dq, dkv


def visible_pairs(i, j, seen):
    """Return True for visible pairs of positions [rows, 1] and [keys, 1]: [rows, keys]."""
    return (i >= 0) & (j.T >= 0) & seen(i + (KV_SEQ - SEQ), j.T)


def product(form, a, b):
    """Multiply in the dtype of b, with sums in the accumulator dtype."""
    a = a.astype(b.dtype)
    return jnp.einsum(form, a, b, preferred_element_type=accum_dtype(b), precision="highest")


def group_heads(x, k):
    """Reshape to [batch, KV heads, query heads per KV head, rows, width]."""
    return x.reshape(*k.shape[:2], x.shape[1] // k.shape[1], *x.shape[2:])


def in_blocks(x, size=None):
    """Reshape to [blocks, ..., tokens, width]: at most 8 blocks of at least 256 tokens, padded."""
    tokens = x.shape[-2]
    size = size or max(1, min(tokens, max(256, -(-tokens // 8))))
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -tokens % size), (0, 0)], constant_values=-1)
    return jnp.moveaxis(x.reshape(*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1]), -3, 0)


def join_blocks(blocks, like):
    """Concatenate blocks to an array with the heads and tokens of `like`."""
    x = jnp.moveaxis(blocks, 0, -3)
    x = x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., : like.shape[2], :]
    return x.reshape(*like.shape[:3], x.shape[-1])


def accum_dtype(x):
    """Return the dtype of partial sums: float32, or wider for wider inputs."""
    return jnp.promote_types(x.dtype, jnp.float32)


def merge(out, lse, part, part_lse):
    """Merge attention over two disjoint sets of keys; rows without keys have lse -inf."""
    total = jnp.logaddexp(lse, part_lse)
    share = jnp.exp(part_lse - jnp.maximum(total, jnp.finfo(total.dtype).min))
    return out + share * (part - out), total


def with_output(queries):
    """Return (q, dout, out, lse) for visiting queries (q, dout, lse, delta).

    Kernels use `out` only to compute delta, the sum of dout * out along a row, so any `out` with
    the same sum gives the same gradients. The returned `out` is parallel to dout.
    """
    q, dout, lse, delta = queries
    largest = jnp.abs(dout).max(-1, keepdims=True).astype(delta.dtype)
    largest = largest.clip(jnp.finfo(delta.dtype).tiny)
    unit = dout / largest
    out = unit * (delta / largest / (unit * unit).sum(-1, keepdims=True).clip(1))
    return q, dout, out, lse
