"""Attention of two registers under the mask, by kernels if the pieces allow it."""

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
    """Return partial dq and dkv of these pairs."""
    if ON_CPU:
        return attend_masked_backward(queries, kv, at, kv_at, allowed)
    else:
        tile_branches = attend_masked_backward, attend_pieces_backward
        return by_pieces(*tile_branches, piece, queries, kv, at, kv_at)


def by_pieces(masked, pieces, piece, *arrays):
    """Attend equal pieces by kernels, except on CPUs, where no kernel is faster."""
    if not piece or any(len(at) % piece for at in arrays[2:]):
        return masked(*arrays, allowed)
    elif ALL_PLATFORMS:
        by_kernels, by_positions = partial(pieces, piece), lambda *given: masked(*given, allowed)
        kinds = {"default": by_positions, "cuda": by_kernels, "tpu": by_kernels}
        return lax.platform_dependent(*arrays, **kinds)
    else:
        return pieces(piece, *arrays)


def attend_pieces(piece, q, kv, at, kv_at):
    """Attend piece by piece, with a kernel if all pairs count, or those below the diagonal."""
    blocks = merge_blocks(partial(tile_branches, attend_masked, attend), q, kv, at, kv_at, piece)
    return tuple(join_blocks(x, q) for x in blocks)


def attend_pieces_backward(piece, queries, kv, at, kv_at):
    """Return the gradients of `attend_pieces`."""
    given = partial(tile_branches, attend_masked_backward, attend_backward), queries, kv, at, kv_at
    dq, dkv = sum_gradients(*given, piece)
    return join_blocks(dq, queries[0]), tuple(
        join_blocks(x, y) for x, y in zip(dkv, kv, strict=True)
    )


def tile_branches(masked, kernel, queries, kv, i, j):
    """Return the kind of two pieces, and the functions for the kinds 1 to 3."""
    i, j = i[:, 0], j[:, 0]
    return tile_kind(i, j), (
        lambda: masked(queries, kv, i, j, allowed),
        lambda: kernel(queries, kv),
        lambda: kernel(queries, kv, True),
    )


def tile_kind(i, j):
    """Return 0 if queries see no key, 2 if all keys, 3 if query n sees the keys 0..n.

    Return 1 otherwise: some pairs, or positions that are not contiguous.
    """
    follow = [(x[0] >= 0) & (jnp.diff(x) == 1).all() for x in (i, j)]
    i, (i0, i1, j0, j1, low, high) = i + (KV_SEQ - SEQ), jnp.array(BOXES, int).reshape(-1, 6).T
    least, most, diagonal = j[0] - i[-1], j[-1] - i[0], j[0] - i[0]
    met = (i0 <= i[-1]) & (i[0] < i1) & (j0 <= j[-1]) & (j[0] < j1)
    met &= (low <= most) & (least <= high)
    within = (i0 <= i[0]) & (i[-1] < i1) & (j0 <= j[0]) & (j[-1] < j1) & (low <= least)
    full, causal = (within & (high >= most)).any(), (within & (high == diagonal)).any()
    kind = jnp.where(full, 2, jnp.where(causal & (met.sum() == 1), 3, met.any()))
    return jnp.where(follow[0] & follow[1], kind, 1)
