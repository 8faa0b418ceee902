"""Adds the attention of some queries and keys to accumulators."""

import jax
import jax.numpy as jnp
from jax import lax

from ringloom.codegen.jax.parts.kernels import attend, attend_backward
from ringloom.codegen.jax.parts.masked import accum_dtype, merge
from ringloom.codegen.jax.parts.stubs import kv_positions, positions
from ringloom.codegen.jax.parts.tiles import attend_tile, attend_tile_backward

RANKS = SEQ = KV_SEQ = 1
Arrays = list[jax.Array]

# ---- Accumulators: merge partial attention and add partial gradients.

all_tokens = slice(None)


def merge_attention(output, queries, kv, causal=False, rows=all_tokens, cols=all_tokens):
    """Attend queries to keys, and merge the result into partial attention."""
    (q,) = tokens(queries, rows)
    return merge_output(output, attend(q, tokens(kv, cols), causal), rows)


def add_gradients(dq, dkv, queries, kv, causal=False, rows=all_tokens, cols=all_tokens):
    """Add the gradients from attending queries to keys."""
    dq_part, dkv_part = attend_backward(tokens(queries, rows), tokens(kv, cols), causal)
    return add(dq, [dq_part], rows), add(dkv, dkv_part, cols)


def merge_tiles(output, queries, kv, at, kv_at, rows=all_tokens, cols=all_tokens, piece=0):
    """Attend tokens at these positions under the mask, and merge the result."""
    (q,) = tokens(queries, rows)
    part = attend_tile(q, tokens(kv, cols), at[rows], kv_at[cols], piece)
    return merge_output(output, part, rows)


def add_tile_gradients(dq, dkv, queries, kv, at, kv_at, rows=all_tokens, cols=all_tokens, piece=0):
    """Add the gradients from attending tokens at these positions under the mask."""
    queries, kv = tokens(queries, rows), tokens(kv, cols)
    dq_part, dkv_part = attend_tile_backward(queries, kv, at[rows], kv_at[cols], piece)
    return add(dq, [dq_part], rows), add(dkv, dkv_part, cols)


def merge_output(output, part, rows=all_tokens):
    """Merge partial attention (output, log-sum-exp) into that of some queries."""
    return with_tokens(output, rows, merge(*tokens(output, rows), *part))


def merge_all(output, parts, count):
    """Merge the partial attention of `count` ranks, concatenated in `parts`."""
    for part in zip(*(jnp.split(x, count) for x in parts), strict=True):
        output = merge_output(output, part)
    return output


def add(sums, part, index=all_tokens):
    """Add partial gradients to those of some tokens."""
    total = [x + y for x, y in zip(tokens(sums, index), part, strict=True)]
    return with_tokens(sums, index, total)


def tokens(arrays, index):
    """Select tokens of each array."""
    return [x[:, :, index] for x in arrays]


def with_tokens(arrays, index, new):
    """Replace some tokens of each array."""
    # Not by a scatter: XLA cannot partition its empty indices in a scan.
    start = index.start or 0
    pairs = zip(arrays, new, strict=True)
    return [lax.dynamic_update_slice_in_dim(x, y, start, 2) for x, y in pairs]


def heads(arrays, slices, number):
    """Select one slice of the heads of each array, out of `slices`."""
    sizes = [x.shape[1] // slices for x in arrays]
    pairs = zip(arrays, sizes, strict=True)
    return [lax.dynamic_slice_in_dim(x, number * size, size, 1) for x, size in pairs]


def with_heads(arrays, new, slices, number):
    """Replace one slice of the heads of each array, out of `slices`."""
    starts = [number * (x.shape[1] // slices) for x in arrays]
    updates = zip(arrays, new, starts, strict=True)
    return [lax.dynamic_update_slice_in_dim(x, y, start, 1) for x, y, start in updates]


def some_heads(arrays, slices, selected):
    """Select several slices of the heads of each array, out of `slices`."""
    parts = [x.reshape(len(x), slices, -1, *x.shape[2:])[:, selected] for x in arrays]
    return [x.reshape(len(x), -1, *x.shape[3:]) for x in parts]


def with_some_heads(arrays, new, slices, selected):
    """Replace several slices of the heads of each array, out of `slices`."""

    def replace_slices(x, y):
        parts = x.reshape(len(x), slices, -1, *x.shape[2:])
        y = y.reshape(len(x), -1, *parts.shape[2:])
        return parts.at[:, selected].set(y).reshape(x.shape)

    return [replace_slices(x, y.astype(x.dtype)) for x, y in zip(arrays, new, strict=True)]


def repeat_heads(arrays, copies):
    """Repeat each head `copies` times in a row, where there are fewer heads than ranks."""
    return [jnp.repeat(x, copies, 1) for x in arrays]


def add_repeated(gradients, copies):
    """Sum the gradients of `copies` copies of each head."""
    return [x.reshape(len(x), -1, copies, *x.shape[2:]).sum(2) for x in gradients]


def merge_one_slice(attend, slices, number, output, queries, *keys, **options):
    """Attend one slice of the query heads, out of `slices`, and merge the result."""
    part, queries = (heads(x, slices, number) for x in (output, queries))
    return with_heads(output, attend(part, queries, *keys, **options), slices, number)


def add_one_slice(attend, slices, number, dq, dkv, queries, *keys, **options):
    """Add the gradients of one slice of the query heads, out of `slices`."""
    part, queries = (heads(x, slices, number) for x in (dq, queries))
    part, dkv = attend(part, dkv, queries, *keys, **options)
    return with_heads(dq, part, slices, number), dkv


def zero_output(queries, v):
    """Return the attention to no keys: output and log-sum-exp [batch, heads, tokens, 1]."""
    (q,) = queries
    out = jnp.zeros((*q.shape[:3], v.shape[3]), accum_dtype(q))
    return [out, jnp.full_like(out[..., :1], -jnp.inf)]


def zeros(arrays):
    """Return zero gradients for some arrays."""
    return [jnp.zeros(x.shape, accum_dtype(x)) for x in arrays]


def clear(sums, index):
    """Zero partial gradients of some tokens."""
    return with_tokens(sums, index, [jnp.zeros_like(x) for x in tokens(sums, index)])


def narrow(sums, like):
    """Round complete sums to the dtype of the inputs."""
    return [x.astype(like.dtype) for x in sums]


def positions_at(rank, seq=SEQ):
    """Return the positions of the tokens on a rank, or on each of several ranks."""
    return jnp.array([positions(r, seq) for r in range(RANKS)])[rank]


def kv_positions_at(rank, seq=KV_SEQ):
    """Return the positions of the keys on a rank, or on each of several ranks."""
    return jnp.array([kv_positions(r, seq) for r in range(RANKS)])[rank]
