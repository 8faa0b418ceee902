"""Cuts whole arrays into shards, one for each rank, and joins shards again."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from ringloom.codegen.jax.parts.stubs import kv_positions, positions

RANKS = 1
APART = PADDED = True


def pad_positions(local: np.ndarray, length: int) -> np.ndarray:
    """Pad positions with -1 up to a length."""
    return np.pad(local, (0, length - len(local)), constant_values=-1)


def shard(x: jax.Array, rank: int, axis: int = 2, side: str = "q") -> jax.Array:
    """Return a rank's shard of a whole array, zero-padded; side: "kv" for keys and values."""
    seq = x.shape[axis]
    local = kv_positions(rank, seq) if APART and side == "kv" else positions(rank, seq)
    if PADDED:
        # Position -1 selects the zero that is appended after the last token.
        x = jnp.pad(x, [(0, int(a == axis % x.ndim)) for a in range(x.ndim)])
    return x.take(local, axis)


def unshard(parts: Iterable[jax.Array], axis: int = 2, side: str = "q") -> jax.Array:
    """Return the whole array in sequence order, from the shards of all ranks."""
    whole, ranks = jnp.concatenate(list(parts), axis), range(RANKS)
    if PADDED:
        pieces = [kv_positions(r) if APART and side == "kv" else positions(r) for r in ranks]
    else:
        n = whole.shape[axis]
        pieces = [kv_positions(r, n) if APART and side == "kv" else positions(r, n) for r in ranks]
    order = np.concatenate(pieces)
    return whole.take(np.argsort(order)[(order < 0).sum() :], axis)
