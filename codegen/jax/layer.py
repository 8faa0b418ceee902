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
    sizes = f"{widths(program)}\nNORM_EPS, ROPE_BASE = 1e-5, 10000.0\n"
    return [sizes, *parts_of("jax", "layers/layer", "dense", "layers/layer_check")]
