"""parts(program), text(program)   what --layer adds to a program: a decoder layer and its check."""

from codegen.programs import Program
from planner.errors import PlanError

KEEP = ("init", "decoder_layer", "reference")
USAGE = (
    "y = decoder_layer(params, x{})  # x: this rank's tokens [batch, tokens, dim], as y",
    "params = init(seed)             # the same ones on every rank; sum their gradients",
    "out = attention(q, k, v{})      # differentiable; local shards [batch, heads, tokens, {}]",
)


def parts(program: Program) -> tuple[str, ...]:
    """The names of the parts, the self-check last."""
    if program.dynamic:
        return "layer", "layer_given", "given_check"
    return "layer", "layer_here", "check"


def text(program: Program) -> str:
    """The widths, and where the tokens of a rank are; PlanError for plans without a layer."""
    refuse(program)
    dim = program.work.heads * program.work.head_dim
    lines = [f"DIM, HIDDEN = {dim}, {hidden(dim)}  # widths of the model and of its network"]
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
    """How the layer is called."""
    tables = ", tables" if program.dynamic else ""
    return [line.format(tables, program.work.head_dim) for line in USAGE]


def hidden(dim: int) -> int:
    """8/3 of the width, rounded up to a multiple of 256, or of 16 in small models."""
    step = 256 if dim >= 1024 else 16
    return -(-8 * dim // (3 * step)) * step


def refuse(program: Program) -> None:
    """Raise PlanError for a plan that no layer can be made of."""
    work, sides = program.work, program.forward.partition
    if program.backward is None:
        raise PlanError("a decoder layer needs a backward plan too: give a pair, or --pass both")
    if work.seq != work.kv_seq:
        raise PlanError(
            f"a decoder layer attends to its own tokens: {work.seq} queries, {work.kv_seq} keys"
        )
    for rank in range(program.ranks):
        q, kv = (sides.side(name).positions(rank).tolist() for name in ("q", "kv"))
        if q != kv:
            raise PlanError("a decoder layer needs queries and keys of a token on the same rank")
    if work.head_dim % 2:
        raise PlanError(f"rotary embedding needs an even head_dim, not {work.head_dim}")
