"""The result that the self-check compares, of a program without a backward pass."""

from functools import partial
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from codegen.jax.parts.function import attention


@partial(jax.jit, static_argnums=4)
def results(q, k, v, dout, mesh):
    """The output alone: there are no gradients."""
    return (attention(q, k, v, mesh=mesh),)
