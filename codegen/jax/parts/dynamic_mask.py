"""The mask of a call: a band in a box of positions."""

from typing import TYPE_CHECKING

import jax.numpy as jnp

SEQ = KV_SEQ = 1

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import KEYS, QUERIES


def meeting(i, j, i0, i1, j0, j1, low, high):
    """Positions of a block of queries and of a block of keys in a box, and which pairs count."""
    rows, cols = jnp.asarray(QUERIES.at)[i], jnp.asarray(KEYS.at)[j]
    aligned = rows + (KV_SEQ - SEQ)
    rows = jnp.where((i0 <= aligned) & (aligned < i1), rows, -1)
    cols = jnp.where((j0 <= cols) & (cols < j1), cols, -1)
    return rows, cols, lambda i, j: (low <= j - i) & (j - i <= high)
