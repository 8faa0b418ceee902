"""Functions that printed schedules call: rectangles met and added, sums, and messages."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from codegen.jax.parts.kernels import attend, attend_backward
from codegen.jax.parts.masked import attend_masked, attend_masked_backward, merge, wide
from codegen.jax.parts.stubs import allowed, kv_positions, positions, shard

RANKS = SEQ = V_HEAD_DIM = 1
UNEQUAL = True

# ---- Schedule


def meet(out, lse, q, kv, causal=False):
    """Merge partial attention of queries to visiting keys."""
    return merge(out, lse, *attend(q, kv, causal))


def meet_part(out, lse, q, kv, rows=slice(None), cols=slice(None), causal=False):
    """Merge partial attention of some rows of queries to some columns of keys."""
    part = attend(q[:, :, rows], [x[:, :, cols] for x in kv], causal)
    merged = merge(out[:, :, rows], lse[:, :, rows], *part)
    return with_rows(out, rows, merged[0]), with_rows(lse, rows, merged[1])


def meet_masked(out, lse, q, kv, at, kv_at):
    """Merge partial attention under the mask of queries and keys at these positions."""
    return merge(out, lse, *attend_masked(q, kv, at, kv_at, allowed))


def meet_backward(dq, dkv, queries, kv, causal=False):
    """Add the gradients of queries and visiting keys and values."""
    dq_part, part = attend_backward(queries, kv, causal)
    return dq + dq_part, tuple(map(jnp.add, dkv, part))


def meet_part_backward(dq, dkv, queries, kv, rows=slice(None), cols=slice(None), causal=False):
    """Add the gradients of some rows of queries and some columns of keys and values."""
    queries, kv = [x[:, :, rows] for x in queries], [x[:, :, cols] for x in kv]
    dq_part, part = attend_backward(queries, kv, causal)
    dkv = tuple(with_rows(x, cols, x[:, :, cols] + y) for x, y in zip(dkv, part, strict=True))
    return with_rows(dq, rows, dq[:, :, rows] + dq_part), dkv


def with_rows(x, rows, new):
    """x with other rows; not a scatter, whose empty indices XLA cannot split in a scan."""
    return lax.dynamic_update_slice_in_dim(x, new, rows.indices(x.shape[2])[0], 2)


def meet_masked_backward(dq, dkv, queries, kv, at, kv_at):
    """Add the gradients under the mask of queries and keys at these positions."""
    dq_part, part = attend_masked_backward(queries, kv, at, kv_at, allowed)
    return dq + dq_part, tuple(map(jnp.add, dkv, part))


def tokens_of(rank, seq=SEQ):
    """The positions of the tokens on a device."""
    return jnp.array([positions(r, seq) for r in range(RANKS)])[rank]


def keys_of(rank):
    """The positions of the keys on a device."""
    return jnp.array([kv_positions(r) for r in range(RANKS)])[rank]


def over_tiles(meet, sums, q, kv, ends, diagonal=True):
    """Accumulate tiles: of piece n of the queries, ends[n] pieces of keys and the diagonal."""
    size = sums[0].shape[2] // len(ends)
    for n, end in enumerate(ends):
        if diagonal:
            sums = meet(*sums, q, kv, n, end, size, causal=True)
        sums = lax.fori_loop(0, end, lambda col, sums, n=n: meet(*sums, q, kv, n, col, size), sums)
    return sums


def meet_tile(out, lse, q, kv, row, col, size, causal=False):
    """Merge partial attention of one piece of the queries to one piece of the keys."""
    old, old_lse, rows = (piece(x, row, size) for x in (out, lse, q))
    met = merge(old, old_lse, *attend(rows, [piece(x, col, size) for x in kv], causal))
    return put(out, row, met[0]), put(lse, row, met[1])


def meet_tile_backward(dq, dkv, queries, kv, row, col, size, causal=False):
    """Add the gradients of one piece of the queries and one piece of keys and values."""
    *queries, old = (piece(x, row, size) for x in (*queries, dq))
    k, v, *old_dkv = (piece(x, col, size) for x in (*kv, *dkv))
    dq_part, part = attend_backward(queries, (k, v), causal)
    dkv = tuple(put(x, col, a + b) for x, a, b in zip(dkv, old_dkv, part, strict=True))
    return put(dq, row, old + dq_part), dkv


def piece(x, number, size):
    """A piece of the tokens."""
    return lax.dynamic_slice_in_dim(x, number * size, size, 2)


def put(x, number, new):
    """The tokens with another piece in place of one."""
    return lax.dynamic_update_slice_in_dim(x, new, number * new.shape[2], 2)


def nothing(q):
    """Zero output, and log-sum-exp of -inf: attention to no keys."""
    if UNEQUAL:
        out = jnp.zeros((*q.shape[:-1], V_HEAD_DIM), wide(q))
    else:
        out = jnp.zeros(q.shape, wide(q))
    return out, jnp.full_like(out[..., :1], -jnp.inf)


def zeros(arrays):
    """Zero accumulators like some arrays, in the type of partial sums."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, wide(x)), arrays)


def by_heads(x, axis, groups=None):
    """From our tokens with all heads to tokens of all devices with our share of the heads."""
    return lax.all_to_all(x, axis, 1, 2, tiled=True, axis_index_groups=groups)


def by_tokens(x, axis, groups=None):
    """From tokens of all devices with our share of the heads to our tokens with all heads."""
    return lax.all_to_all(x, axis, 2, 1, tiled=True, axis_index_groups=groups)


def sum_of_shards(x, axis, side="q"):
    """The sums over all devices for our tokens."""
    shards = [shard(x, rank, side=side) for rank in range(RANKS)]
    return lax.psum_scatter(jnp.concatenate(shards), axis, tiled=True)  # vmap fails untiled


def in_order(x, order):
    """Tokens with their equal pieces in another order."""
    batch, heads, _, width = x.shape
    return x.reshape(batch, heads, len(order), -1, width)[:, :, np.array(order)].reshape(x.shape)


def some_heads(x, first, every, slices=0):
    """Of so many slices of the heads (or `every`) each n-th one, from the first on."""
    parts = x.reshape(len(x), slices or every, -1, *x.shape[2:])[:, first::every]
    return parts.reshape(len(x), -1, *x.shape[2:])


def with_heads(totals, shares, first, every, slices=0):
    """Sums of all heads, with those of `some_heads` in their places."""

    def placed(total, share):
        parts = total.reshape(len(total), slices or every, -1, *total.shape[2:])
        share = share.reshape(len(total), -1, *parts.shape[2:])
        return parts.at[:, first::every].set(share).reshape(total.shape)

    return jax.tree.map(placed, totals, shares)


def sum_of_copies(x, copies):
    """The sums of each head of which several devices had a copy."""
    return x.reshape(len(x), -1, copies, *x.shape[2:]).sum(2)


def merged_home(out, lse, axis, groups=None):
    """Output and log-sum-exp of our queries, of what each device has of them over some keys."""
    ours = partial(lax.all_to_all, axis_name=axis, split_axis=3, concat_axis=0, tiled=True)
    parts = [ours(x[None], axis_index_groups=groups) for x in (out, lse)]
    return reduce(lambda a, b: merge(*a, *b), zip(*parts, strict=True))


def on_root(x, root, axis):
    """Arrays of one device, zeros on the others."""
    here = lax.axis_index(axis) == root
    return jax.tree.map(lambda x: jnp.where(here, x, 0), x)


def hop(ranks, far):
    """Pairs of ranks, each with the one so far behind it."""
    return [(r % RANKS, (r + far) % RANKS) for r in ranks]


def permute_outputs(x, axis, pairs):
    """ppermute of output and log-sum-exp; where nothing arrives, of no keys."""
    out, lse = lax.ppermute(x, axis, pairs)
    arrived = jnp.isin(lax.axis_index(axis), jnp.array([to for _, to in pairs]))
    return out, jnp.where(arrived, lse, -jnp.inf)
