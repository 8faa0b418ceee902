"""What the self-check compares where tables are an argument, of the forward pass."""

from functools import partial

import jax

from codegen.jax.parts.dynamic_example import example


def results(function, q, k, v, dout):
    """The output alone, of this program under the mask of the self-check."""
    if isinstance(function, partial):  # this program, not its reference
        function = partial(function, tables=example())
    return (jax.jit(function)(q, k, v),)
