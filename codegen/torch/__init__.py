"""Torch programs: one attention function, printed from loops or by tables, and its check."""

from codegen.assemble import PACKED, Part, assemble, parts_of
from codegen.header import constants, docstring
from codegen.layout_text import has_kv_positions, layout_text
from codegen.masks import mask_expression, mask_function
from codegen.programs import Program
from codegen.reflow import WIDTH, reflow
from codegen.torch.by_tables import dynamic, table
from codegen.torch.by_tables.dynamic import tables
from codegen.torch.schedule import schedule
from planner.errors import PlanError

__all__ = ["tables", "write"]
CALLED = "vocabulary/messages", "vocabulary/accumulation", "bands", "visitors", "merge"
KERNELS = "kernels", "sums"
KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")
OPS = frozenset({"regular", "many", "several", "keys"})  # marks of what passes call


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
    texts += parts_of("torch", check, "checks/check", **seen(program, 4 if whole else 8))
    keep = [*KEEP, *["kv_positions"] * apart]
    marks = program.marks | {"apart" if apart else "alike"} | (OPS if passes else set())
    choices = program.choices | {"APART": apart}
    return assemble(docstring(program), texts, keep, marks, choices)


def seen(program: Program, margin: int) -> dict[str, str]:
    """The line of the self-check that says which keys a query sees, if it needs no function."""
    text = mask_expression(program.work)
    line = f"{' ' * margin}seen = ({text}).to(q.device)"
    return {"seen": line} if text and len(line) <= WIDTH else {}


def shapes(program: Program, apart: bool) -> str:
    """The lines of `attention` that say what q, k and v must be."""
    heads, kv_heads = ("q.shape[1]", "k.shape[1]") if program.any_heads else ("HEADS", "KV_HEADS")
    tokens = "len(positions(group.rank()))"
    if program.free:
        many, least = (n // program.ranks for n in (program.layout.multiple, program.least))
        whole = f"q.shape[2] // {many}) * {many}" if many > 1 else "q.shape[2])"
        tokens = f"max({least // many}, {whole}"
    each, sizes = "n, tokens", "heads"
    lines = [f"heads, tokens = ({heads}, {kv_heads}, {kv_heads}), {tokens}"]
    if apart:
        keys = "len(kv_positions(group.rank()))"
        lines = [f"queries, keys = ({heads}, {tokens}), ({kv_heads}, {keys})"]
        each, sizes = "*n", "(queries, keys, keys)"
    dim = "HEAD_DIM"
    if program.unequal:
        lines.append("dims = HEAD_DIM, HEAD_DIM, V_HEAD_DIM")
        sizes, dim = f"zip({sizes}, dims, strict=True)", "dim"
    names = "n, dim" if program.unequal else "n"
    lines.append(f"wanted = [(len(q), {each}, {dim}) for {names} in {sizes}]")
    return "\n".join(reflow(f"    {line}" for line in lines))
