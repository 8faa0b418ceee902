"""Torch programs: one attention function, printed from loops or by tables, and its check."""

from collections.abc import Sequence

from codegen.frame.assemble import PACKED, Part, assemble, parts_of
from codegen.frame.header import constants, docstring
from codegen.frame.layout_text import has_kv_positions, layout_text
from codegen.frame.masks import mask_function
from codegen.programs import Program
from codegen.torch import by_tables
from codegen.torch.by_tables import tables
from codegen.torch.schedule import schedule
from planner.errors import PlanError

__all__ = ["tables", "write"]
CALLED = "vocabulary/messages", "vocabulary/accumulation", "bands", "visitors", "merge"
KEEP = "PLAN", "positions", "shard", "unshard", "attention", "main"


def write(program: Program) -> str:
    """The text of a program: its lowered passes where they can be printed, else tables."""
    apart = has_kv_positions(program.layout, "torch")
    if program.lowered is not None:
        try:
            printed = schedule(program, apart)
            first, *called = parts_of("torch", "operators", *CALLED)
            return written(program, [first, printed, *called], apart)
        except PlanError as error:
            program = program.as_tables(str(error))
    return written(program, by_tables.passes(program), apart)


def written(program: Program, passes: Sequence[str | Part], apart: bool) -> str:
    """A program of these passes, for its plan or for those that tables describe.

    `apart`: keys lie elsewhere than queries.
    """
    bound = not program.dynamic
    kept = ["kv_positions"] * apart if bound else by_tables.KEEP
    where = [layout_text(program.layout, "torch", program.free)]
    attention = "attention_with_sinks" if program.work.sinks else "attention"
    texts = [
        *[constants(program), PACKED],
        *(where if bound else by_tables.layout(program)),
        *passes,
        *parts_of("torch", "kernels", "agree", *[attention] * bound, "function"),
        *[shapes(program, apart)] * bound,
        *parts_of("torch", "sinks", "autograd"),
        *[mask_function(program.work, "torch")] * bound,
        *parts_of("torch", "compared", "check"),
    ]
    choices = program.choices | {"APART": apart}
    usage = [] if bound else by_tables.usage(program)
    return assemble(docstring(program, usage), texts, [*KEEP, *kept], choices)


def shapes(program: Program, apart: bool) -> str:
    """The function that says which shapes a program takes; `apart`: keys lie elsewhere."""
    heads, kv_heads = ("q.shape[1]", "k.shape[1]") if program.any_heads else ("HEADS", "KV_HEADS")
    tokens = "len(positions(rank))"
    if program.free:
        many, least = (n // program.ranks for n in (program.layout.multiple, program.least))
        tokens = f"max({least // many}, q.shape[2] // {many}) * {many}"
    kv_tokens = "len(kv_positions(rank))" if apart else "tokens"
    v_dim = "V_HEAD_DIM" if program.unequal else "HEAD_DIM"
    lines = [
        "def shapes(q: Tensor, k: Tensor, rank: int) -> list[tuple[int, ...]]:",
        '    """The shapes of q, k and v that go on a rank: the nearest to those given."""',
        f"    tokens = {tokens}",
        f"    kv = len(q), {kv_heads}, {kv_tokens}",
        f"    return [(len(q), {heads}, tokens, HEAD_DIM), (*kv, HEAD_DIM), (*kv, {v_dim})]",
    ]
    return "\n".join(lines) + "\n"
