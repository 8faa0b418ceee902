"""texts(program)   the decoder layer that goes behind attention, with its self-check."""

from codegen.assemble import Part, parts_of
from codegen.layers import KEEP, refuse, widths
from codegen.programs import Program

__all__ = ["KEEP", "texts"]


def texts(program: Program) -> list[str | Part]:
    """Returns the parts of a program with a layer, in place of the self-check of attention.

    Raises PlanError for a plan that no layer can be made of.
    """
    refuse(program)
    check = parts_of("jax", "dense", "layers/layer_check")
    return [sizes(program), *parts_of("jax", "layers/layer"), layer(program.dynamic), *check]


def sizes(program: Program) -> str:
    """The widths of the model, and the positions of tokens in layout order."""
    seq = "x.shape[1]" if program.free else "SEQ"
    return f'''
import numpy as np

{widths(program)}
NORM_EPS, ROPE_BASE = 1e-5, 10000.0


def layout_positions(x):
    """The positions of the tokens of x [batch, tokens, dim], -1 for padding."""
    return np.concatenate([positions(rank, {seq}) for rank in range(RANKS)])
'''


def layer(dynamic: bool) -> str:
    """The decoder layer, with tables as an argument or without."""
    argument = "    tables: dict[str, jax.Array],\n" * dynamic
    tables, example = (", tables=tables", "example(), ") if dynamic else ("", "")
    return f'''
from functools import partial
import jax
from jax.sharding import Mesh

def decoder_layer(
    params: dict[str, jax.Array],
    x: jax.Array,
{argument}    *,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
) -> jax.Array:
    """A decoder layer on sequences sharded over an axis of a mesh, differentiable in both.

    x, and the result: [batch, tokens, dim], tokens in layout order; without meaning at padding.
    """
    attend = partial(attention{tables}, mesh=mesh, axis=axis, batch_axis=batch_axis)
    return layer_around(attend, params, x, layout_positions(x))


# ---- Self-check


def our_layer(mesh, params, x):
    """The layer of this program, of and in the order of the sequence."""
    return in_sequence(decoder_layer(params, in_layout(x, mesh), {example}mesh=mesh))
'''
