"""Rectangles that ranks cut differently, as tiles of one shape: pieces of queries and of keys."""

from jax import lax

from codegen.jax.parts.kernels import attend, attend_backward
from codegen.jax.parts.merge import merge


def meet_tile(out, lse, q, kv, row, col, size, causal=False):
    """Output and log-sum-exp of queries, a piece of which has met one more piece of the keys."""
    old, old_lse, rows = (piece(x, row, size) for x in (out, lse, q))
    k, v = (piece(x, col, size) for x in kv)
    met = merge(old, old_lse, *attend(rows, k, v, causal))
    return put(out, row, met[0]), put(lse, row, met[1])


def meet_tile_backward(dq, dkv, queries, kv, row, col, size, causal=False):
    """Gradients of queries, and of keys and values, with those of one more pair of pieces."""
    q, dout, out, lse, old = (piece(x, row, size) for x in (*queries, dq))
    k, v, *old_dkv = (piece(x, col, size) for x in (*kv, *dkv))
    dq_part, *part = attend_backward(dout, q, k, v, out, lse, causal)
    dkv = [put(x, col, a + b) for x, a, b in zip(dkv, old_dkv, part, strict=True)]
    return put(dq, row, old + dq_part), tuple(dkv)


def piece(x, number, size):
    """A piece of the tokens."""
    return lax.dynamic_slice_in_dim(x, number * size, size, 2)


def put(x, number, new):
    """The tokens with another piece in place of one."""
    return lax.dynamic_update_slice_in_dim(x, new, number * new.shape[2], 2)
