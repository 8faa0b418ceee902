"""A stand-in for the output where only its product with dout travelled."""

import jax.numpy as jnp


def stand_in(dout, delta):
    """A vector for each query whose product with dout is delta: kernels ask for `out` instead."""
    largest = jnp.maximum(jnp.abs(dout).max(-1, keepdims=True), jnp.finfo(dout.dtype).tiny)
    unit = (dout / largest).astype(delta.dtype)
    return unit * delta / (largest * (unit * unit).sum(-1, keepdims=True))
