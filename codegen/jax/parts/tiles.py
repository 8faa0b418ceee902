"""Attention of all that a mask leaves of two registers, by kernels where pieces allow it."""

from functools import partial

import jax.numpy as jnp
from jax import lax

from ringloom.codegen.jax.parts.kernels import attend, attend_backward
from ringloom.codegen.jax.parts.masked import (
    attend_masked,
    attend_masked_backward,
    gradients_of_blocks,
    joined,
    merged_blocks,
)
from ringloom.codegen.jax.parts.stubs import allowed

SEQ = KV_SEQ = 0
ON_CPU = ALL_PLATFORMS = True
BOXES: tuple[tuple[int, ...], ...] = ()

# ---- Tiles: what the mask leaves of tokens at some positions.


def attend_tile(q, kv, at, kv_at, piece):
    """Output and log-sum-exp, wide, of queries and keys at these positions.

    piece: as many tokens follow each other in the sequence; 0 where that is not known.
    """
    if ON_CPU:
        return attend_masked(q, kv, at, kv_at, allowed)
    else:
        return by_pieces(attend_masked, attend_pieces, piece, q, kv, at, kv_at)


def attend_tile_backward(queries, kv, at, kv_at, piece):
    """Shares of these pairs in dq and dkv."""
    if ON_CPU:
        return attend_masked_backward(queries, kv, at, kv_at, allowed)
    else:
        ways = attend_masked_backward, attend_pieces_backward
        return by_pieces(*ways, piece, queries, kv, at, kv_at)


def by_pieces(masked, pieces, piece, *arrays):
    """Attend pieces where these are alike, but not on CPUs, where no kernel is faster."""
    if not piece or any(len(at) % piece for at in arrays[2:]):
        return masked(*arrays, allowed)
    elif ALL_PLATFORMS:
        by_kernels, by_positions = partial(pieces, piece), lambda *given: masked(*given, allowed)
        kinds = {"default": by_positions, "cuda": by_kernels, "tpu": by_kernels}
        return lax.platform_dependent(*arrays, **kinds)
    else:
        return pieces(piece, *arrays)


def attend_pieces(piece, q, kv, at, kv_at):
    """Attend piece by piece: by a kernel where all pairs count, or those below the diagonal."""
    blocks = merged_blocks(partial(ways, attend_masked, attend), q, kv, at, kv_at, piece)
    return tuple(joined(x, q) for x in blocks)


def attend_pieces_backward(piece, queries, kv, at, kv_at):
    """The same for gradients."""
    given = partial(ways, attend_masked_backward, attend_backward), queries, kv, at, kv_at
    dq, dkv = gradients_of_blocks(*given, piece)
    return joined(dq, queries[0]), tuple(joined(x, y) for x, y in zip(dkv, kv, strict=True))


def ways(masked, kernel, queries, kv, i, j):
    """The number of the way in which two pieces are attended, from 1 on, and all three ways."""
    i, j = i[:, 0], j[:, 0]
    return kind_of(i, j), (
        lambda: masked(queries, kv, i, j, allowed),
        lambda: kernel(queries, kv),
        lambda: kernel(queries, kv, True),
    )


def kind_of(i, j):
    """Tells if queries at these positions see 0 no key, 2 all keys, 3 query n the keys 0..n.

    1 is anything else: part of it, or positions that do not follow each other.
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
