"""parts(program), text(program)   what --layer adds to a program: a decoder layer and its check."""

from codegen.layers import KEEP, refuse, widths
from codegen.programs import Program

__all__ = ["KEEP", "parts", "text", "usage"]
USAGE = (
    "y = decoder_layer(params, x{})  # x: this rank's tokens [batch, tokens, dim], as y",
    "params = init(seed)             # the same ones on every rank; sum their gradients",
    "out = attention(q, k, v{})      # differentiable; local shards [batch, heads, tokens, {}]",
)


def parts(program: Program) -> tuple[str, ...]:
    """The names of the parts, the self-check last."""
    if program.dynamic:
        return "layers/layer", "layers/layer_given", "checks/check_rows", "checks/check"
    return "layers/layer", "layers/layer_here", "checks/check"


def text(program: Program) -> str:
    """The widths, as text; PlanError for plans without a layer."""
    refuse(program)
    return f"{widths(program)}\n"


def usage(program: Program) -> list[str]:
    """Returns the call of the layer, as text."""
    tables = ", tables" if program.dynamic else ""
    return [line.format(tables, program.work.head_dim) for line in USAGE]
