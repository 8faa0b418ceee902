"""What the self-check compares where tables are an argument, of the forward pass."""

from codegen.jax.parts.dynamic_example import example
from codegen.jax.parts.dynamic_function import attention


def results(q, k, v, dout, mesh):
    """Output under the mask of the self-check; there are no gradients."""
    return (attention(q, k, v, example(), mesh=mesh),)
