"""Torch programs: one attention function, printed from loops or by tables, and its check."""

from codegen import dry_run
from codegen.assemble import PACKED, Part, assemble, parts_of
from codegen.header import constants, docstring
from codegen.layout_text import layout_text
from codegen.masks import mask_expression, mask_function
from codegen.programs import Program
from codegen.reflow import WIDTH, reflow
from codegen.torch.by_tables import dynamic, table
from codegen.torch.by_tables.dynamic import tables
from codegen.torch.schedule import parts_called, print_loops
from planner.errors import PlanError

__all__ = ["tables", "write"]
KERNELS = "kernels", "sums"
KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program."""
    if program.dynamic:
        return dynamic.write(program)
    if program.passes is not None:
        try:
            text = written(program, print_loops(program.passes, program.free))
            dry_run.check(program, text)
            return text
        except PlanError as error:
            program = program.as_tables(str(error))
    return written(program)


def written(program: Program, loops: str = "") -> str:
    """A program that is bound to its plan, from printed loops or by tables."""
    layout = layout_text(program.layout, "torch", program.free)
    texts: list[str | Part] = [constants(program), PACKED, layout]
    parts, marks = parts_called(program.plans, program.loops or (), loops)
    texts += [*parts_of("torch", "operators"), loops, *parts] if loops else table.text(program)
    texts += parts_of("torch", *KERNELS) if not loops else []
    apart = "def kv_positions" in layout
    texts += table.operators(program, shapes(program, apart))
    texts += [mask_function(program.work, "torch")]
    special = program.unequal or program.work.sinks
    whole = program.free and program.backward and not special
    check = "checks/check_whole" if whole else "checks/check_rows"
    texts += parts_of("torch", check, "checks/check", **seen(program, 4 if whole else 8))
    keep = [*KEEP, *["kv_positions"] * apart]
    marks |= {"apart" if apart else "alike"}
    return assemble(
        docstring(program), texts, keep, program.marks | marks, program.choices | {"APART": apart}
    )


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
