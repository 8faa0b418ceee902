"""Torch programs: one attention function, printed from loops or by tables, and its check."""

from codegen.frame.assemble import PACKED, Part, assemble, parts_of
from codegen.frame.header import constants, docstring
from codegen.frame.layout_text import has_kv_positions, layout_text
from codegen.frame.masks import mask_function
from codegen.programs import Program
from codegen.torch.by_tables import dynamic, table
from codegen.torch.by_tables.dynamic import tables
from codegen.torch.schedule import schedule
from planner.errors import PlanError

__all__ = ["tables", "write"]
CALLED = "vocabulary/messages", "vocabulary/accumulation", "bands", "visitors", "merge"
KERNELS = "kernels", "sums"
KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program: its lowered passes where they can be printed, else tables."""
    if program.dynamic:
        return dynamic.write(program)
    layout = layout_text(program.layout, "torch", program.free)
    apart = has_kv_positions(program.layout, "torch")
    if program.lowered is not None:
        try:
            return written(program, layout, apart, schedule(program, apart))
        except PlanError as error:
            program = program.as_tables(str(error))
            layout = layout_text(program.layout, "torch", program.free)
    return written(program, layout, apart)


def written(program: Program, layout: str, apart: bool, passes: str = "") -> str:
    """A program that is bound to its plan, from printed passes or by tables."""
    texts: list[str | Part] = [constants(program), PACKED, layout]
    texts += [*parts_of("torch", "operators"), passes] if passes else table.text(program)
    texts += parts_of("torch", *CALLED) if passes else []
    texts += parts_of("torch", *KERNELS)
    texts += table.operators(program, shapes(program, apart))
    texts += [mask_function(program.work, "torch")]
    special = program.unequal or program.work.sinks
    whole = program.free and program.backward and not special
    check = "checks/check_whole" if whole else "checks/check_rows"
    texts += parts_of("torch", check, "checks/check")
    keep = [*KEEP, *["kv_positions"] * apart]
    choices = program.choices | {"APART": apart}
    return assemble(docstring(program), texts, keep, choices)


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
