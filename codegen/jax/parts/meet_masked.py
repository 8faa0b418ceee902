"""Queries that meet keys under a mask that is asked for positions."""

from typing import TYPE_CHECKING

import jax.numpy as jnp

from codegen.jax.parts.masked import attend_masked
from codegen.jax.parts.merge import merge

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import allowed, kv_positions, positions

RANKS = 1


def meet_masked(out, lse, q, kv, at, kv_at, rows=slice(None), cols=slice(None)):
    """`meet` for queries and keys at these positions."""
    k, v = (x[:, :, cols] for x in kv)
    part = attend_masked(q[:, :, rows], k, v, at[rows], kv_at[cols], allowed)
    merged = merge(out[:, :, rows], lse[:, :, rows], *part)
    return out.at[:, :, rows].set(merged[0]), lse.at[:, :, rows].set(merged[1])


def tokens_of(rank):
    """The positions of the tokens on a device."""
    return jnp.array([positions(r) for r in range(RANKS)])[rank]


def keys_of(rank):
    """The positions of the keys on a device."""
    return jnp.array([kv_positions(r) for r in range(RANKS)])[rank]
