"""Messages whose way depends on the step of a loop, and outputs that not every device gets."""

from functools import partial

import jax.numpy as jnp
from jax import lax


def in_step(number, ways, x, axis):
    """Send x along the pairs of devices of a step: `ways` has those of all steps."""
    return lax.switch(number, [partial(lax.ppermute, axis_name=axis, perm=way) for way in ways], x)


def permute_outputs(x, axis, pairs):
    """ppermute of output and log-sum-exp; where nothing arrives, of no keys."""
    out, lse = lax.ppermute(x, axis, pairs)
    arrived = jnp.isin(lax.axis_index(axis), jnp.array([to for _, to in pairs]))
    return out, jnp.where(arrived, lse, -jnp.inf)
