"""The decoder layer of a program whose mask is known."""

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from codegen.jax.parts.function import attention
from codegen.jax.parts.layer import layer_around
from codegen.jax.parts.layer_check import in_layout, in_sequence

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import layout_positions


def decoder_layer(
    params: dict[str, jax.Array],
    x: jax.Array,
    *,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
) -> jax.Array:
    """A decoder layer on sequences sharded over an axis of a mesh, differentiable in both.

    x, and the result: [batch, tokens, dim], tokens in layout order; without meaning at padding.
    """
    attend = partial(attention, mesh=mesh, axis=axis, batch_axis=batch_axis)
    return layer_around(attend, params, x, layout_positions(x))


# ---- Self-check


def our_layer(mesh, params, x):
    """The layer of this program, of and in the order of the sequence."""
    return in_sequence(decoder_layer(params, in_layout(x, mesh), mesh=mesh))
