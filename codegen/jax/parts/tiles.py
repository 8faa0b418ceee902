"""Attention of two registers under the mask, by kernels if the pieces allow this."""

from functools import partial

import jax.numpy as jnp
from jax import lax

from ringloom.codegen.jax.parts.kernels import attend, attend_backward
from ringloom.codegen.jax.parts.masked import (
    attend_masked,
    attend_masked_backward,
    join_blocks,
    merge_blocks,
    sum_gradients,
)
from ringloom.codegen.jax.parts.stubs import allowed

SEQ = KV_SEQ = 0
ON_CPU = ALL_PLATFORMS = True
BOXES: tuple[tuple[int, ...], ...] = ()

# ---- Tiles: attention of tokens at given positions under the mask.


def attend_tile(q, kv, at, kv_at, piece):
    """Return output and log-sum-exp of queries and keys at these positions.

    piece: the length of contiguous runs of tokens; 0 if unknown.
    """
    if ON_CPU:
        return attend_masked(q, kv, at, kv_at, allowed)
    else:
        return by_pieces(attend_masked, attend_pieces, piece, q, kv, at, kv_at)


def attend_tile_backward(queries, kv, at, kv_at, piece):
    """Return partial dq and (dk, dv) of these queries and keys."""
    if ON_CPU:
        return attend_masked_backward(queries, kv, at, kv_at, allowed)
    else:
        functions = attend_masked_backward, attend_pieces_backward
        return by_pieces(*functions, piece, queries, kv, at, kv_at)


def by_pieces(masked, pieces, piece, *arrays):
    """Attend equal pieces by kernels, except on CPUs, where kernels are not faster."""
    if not piece or any(len(at) % piece for at in arrays[2:]):
        return masked(*arrays, allowed)
    elif ALL_PLATFORMS:
        by_kernels, by_positions = partial(pieces, piece), lambda *x: masked(*x, allowed)
        platforms = {"default": by_positions, "cuda": by_kernels, "tpu": by_kernels}
        return lax.platform_dependent(*arrays, **platforms)
    else:
        return pieces(piece, *arrays)


def attend_pieces(piece, q, kv, at, kv_at):
    """Attend piece by piece, with a kernel where a pair of pieces is full or causal."""
    blocks = merge_blocks(partial(tile_branches, attend_masked, attend), q, kv, at, kv_at, piece)
    return tuple(join_blocks(x, q) for x in blocks)


def attend_pieces_backward(piece, queries, kv, at, kv_at):
    """Return the gradients of `attend_pieces`."""
    branches = partial(tile_branches, attend_masked_backward, attend_backward)
    dq, dkv = sum_gradients(branches, queries, kv, at, kv_at, piece)
    return join_blocks(dq, queries[0]), tuple(
        join_blocks(x, y) for x, y in zip(dkv, kv, strict=True)
    )


def tile_branches(masked, kernel, queries, kv, i, j):
    """Return the kind of two pieces (see `tile_kind`), and the functions for kinds 1 to 3."""
    i, j = i[:, 0], j[:, 0]
    return tile_kind(i, j), (
        lambda: masked(queries, kv, i, j, allowed),
        lambda: kernel(queries, kv),
        lambda: kernel(queries, kv, True),
    )


def tile_kind(i, j):
    """Return 0 if queries see no key, 2 if all keys, 3 if query n sees keys 0..n, 1 otherwise.

    Pieces whose positions are not contiguous are of kind 1.
    """
    contiguous = [(x[0] >= 0) & (jnp.diff(x) == 1).all() for x in (i, j)]
    i, (i0, i1, j0, j1, low, high) = i + (KV_SEQ - SEQ), jnp.array(BOXES, int).reshape(-1, 6).T
    least, most, diagonal = j[0] - i[-1], j[-1] - i[0], j[0] - i[0]
    overlaps = (i0 <= i[-1]) & (i[0] < i1) & (j0 <= j[-1]) & (j[0] < j1)
    overlaps &= (low <= most) & (least <= high)
    within = (i0 <= i[0]) & (i[-1] < i1) & (j0 <= j[0]) & (j[-1] < j1) & (low <= least)
    full, causal = (within & (high >= most)).any(), (within & (high == diagonal)).any()
    kind = jnp.where(full, 2, jnp.where(causal & (overlaps.sum() == 1), 3, overlaps.any()))
    return jnp.where(contiguous[0] & contiguous[1], kind, 1)
