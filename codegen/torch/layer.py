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
    """The widths, and where the tokens of a rank are; PlanError for plans without a layer."""
    refuse(program)
    lines = [widths(program)]
    if not program.dynamic:
        seq = ", x.shape[1] * RANKS" if program.free else ""
        lines = [
            *("from typing import Any", "", "import torch", "", *lines, "", ""),
            "def own_positions(x: torch.Tensor, where: Any) -> torch.Tensor:",
            '    """The positions of this rank\'s tokens."""',
            f"    return positions(where[-1].rank(){seq})",
        ]
    return "\n".join(lines) + "\n"


def usage(program: Program) -> list[str]:
    """Returns the call of the layer, as text."""
    tables = ", tables" if program.dynamic else ""
    return [line.format(tables, program.work.head_dim) for line in USAGE]
