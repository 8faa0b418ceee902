"""A stand-in for the output where only its product with dout travelled."""

import jax.numpy as jnp


def stand_in(dout, delta):
    """A vector for each query whose product with dout is delta: kernels ask for `out` instead."""
    largest = jnp.abs(dout).max(-1, keepdims=True)
    unit = dout.astype(delta.dtype) / jnp.where(largest == 0, 1, largest)
    square = (unit * unit).sum(-1, keepdims=True)
    return unit * (delta / jnp.where(largest == 0, 1, largest * square))
