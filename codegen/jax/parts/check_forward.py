"""The result that the self-check compares, of a program without a backward pass."""

import jax


def results(function, q, k, v, dout):
    """The output alone: there are no gradients."""
    return (jax.jit(function)(q, k, v),)
