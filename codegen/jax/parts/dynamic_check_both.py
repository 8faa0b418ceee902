"""What the self-check compares where tables are an argument, of both passes."""

import jax

from codegen.jax.parts.dynamic_example import example
from codegen.jax.parts.dynamic_function import attention


@jax.jit(static_argnums=5)
def results_of(q, k, v, dout, tables, mesh):
    """Output and gradients under the mask of some tables."""
    out, pull = jax.vjp(lambda *x: attention(*x, tables, mesh=mesh), q, k, v)
    return out, *pull(dout)


def results(q, k, v, dout, mesh):
    """Output and gradients under the mask of the self-check."""
    return results_of(q, k, v, dout, example(), mesh)
