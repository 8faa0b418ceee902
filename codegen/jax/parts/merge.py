"""Partial results of attention over disjoint sets of keys, put together."""

import jax.numpy as jnp


def wide(x):
    """The type of partial sums: float32, or wider where the inputs are."""
    return jnp.promote_types(x.dtype, jnp.float32)


def merge(out, lse, part, part_lse):
    """Output and log-sum-exp over two disjoint sets of keys; a row without keys has lse -inf."""
    total = jnp.logaddexp(lse, part_lse)
    share = jnp.exp(part_lse - jnp.maximum(total, jnp.finfo(total.dtype).min))
    return out + share * (part - out), total
