"""parts(program), text(program)   what --layer adds to a program: a decoder layer and its check."""

from codegen.assemble import Part, parts_of
from codegen.layers import KEEP, refuse, widths
from codegen.programs import Program

__all__ = ["KEEP", "parts", "text", "usage"]
WITH_TABLES = {
    "layer": "def decoder_layer(params: Params, x: Tensor, tables: Tables, *, group: Any = None)"
    " -> Tensor:",
    "positions": "    return positions(where[-1].rank(), where[0])",
    "reference": "def reference(params: Params, x: Tensor, tables: Tables) -> Tensor:",
    "ours": "    y, whole = decoder_layer(params, ours, tables), leaf(x.double())",
    "wanted": "    wanted = reference(exact, whole, tables)",
}
USAGE = (
    "y = decoder_layer(params, x{})  # x: this rank's tokens [batch, tokens, dim], as y",
    "params = init(seed)             # the same ones on every rank; sum their gradients",
    "out = attention(q, k, v{})      # differentiable; local shards [batch, heads, tokens, {}]",
)


def parts(program: Program) -> list[Part]:
    """The layer, and the self-check last."""
    printed = WITH_TABLES if program.dynamic else {}
    return parts_of("torch", "layers/layer", "checks/check", **printed)


def text(program: Program) -> str:
    """The widths, as text; PlanError for plans without a layer."""
    refuse(program)
    return f"{widths(program)}\n"


def usage(program: Program) -> list[str]:
    """Returns the call of the layer, as text."""
    tables = ", tables" if program.dynamic else ""
    return [line.format(tables, program.work.head_dim) for line in USAGE]
