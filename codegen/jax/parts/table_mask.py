"""The mask of a tile: that of the program."""

from typing import TYPE_CHECKING

import jax.numpy as jnp

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import KEYS, QUERIES, allowed


def meeting(i, j):
    """Positions of a block of queries and of a block of keys, and which pairs count."""
    return jnp.asarray(QUERIES.at)[i], jnp.asarray(KEYS.at)[j], allowed
