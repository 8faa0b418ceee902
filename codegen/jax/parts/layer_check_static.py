"""The decoder layer as the self-check calls it."""

from codegen.jax.parts.layer_check import in_layout, in_sequence
from codegen.jax.parts.layer_static import decoder_layer


def ours(mesh, params, x):
    """The layer of this program, of and in the order of the sequence."""
    return in_sequence(decoder_layer(params, in_layout(x, mesh), mesh=mesh))
