"""Sums of gradients."""

import jax
import jax.numpy as jnp

from codegen.jax.parts.merge import wide


def zeros(arrays):
    """Sums that nothing has been added to, in the type of partial sums."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, wide(x)), arrays)


def add(sums, more):
    """Two parts of the same sums together."""
    return jax.tree.map(jnp.add, sums, more)


def only(here, sums):
    """The sums where `here`, zero elsewhere."""
    return jax.tree.map(lambda x: jnp.where(here, x, 0), sums)
