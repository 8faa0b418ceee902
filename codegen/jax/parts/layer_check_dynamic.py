"""The decoder layer as the self-check calls it, under the mask of the self-check."""

from codegen.jax.parts.dynamic_example import example
from codegen.jax.parts.layer_check import in_layout, in_sequence
from codegen.jax.parts.layer_dynamic import decoder_layer


def ours(mesh, params, x):
    """The layer of this program, of and in the order of the sequence."""
    return in_sequence(decoder_layer(params, in_layout(x, mesh), example(), mesh=mesh))
