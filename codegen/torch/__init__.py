"""Torch programs: one attention function, printed from loops or by tables, and its check."""

from codegen.assemble import Part, assemble, parts_of
from codegen.header import constants, docstring
from codegen.layout_text import layout_text
from codegen.masks import mask_function
from codegen.programs import Program
from codegen.reflow import reflow
from codegen.torch import layer
from codegen.torch.by_tables import dynamic, table
from codegen.torch.by_tables.dynamic import tables
from codegen.torch.schedule import print_loops
from planner.errors import PlanError

__all__ = ["tables", "write"]
KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program."""
    if program.dynamic:
        return dynamic.write(program)
    if program.loops is not None:
        try:
            return written(program, print_loops(program.plans, program.loops))
        except PlanError as error:
            program = program.as_tables(str(error))
    return written(program)


def written(program: Program, loops: str = "") -> str:
    """A program that is bound to its plan, from printed loops or by tables."""
    layout = layout_text(program.layout, "torch", program.free)
    texts: list[str | Part] = [constants(program), layout]
    texts += [loops, *parts_of("torch", "passing", "merge")] if loops else table.text(program)
    texts += parts_of("torch", "kernels", "sums", *("bands", "visitors") * bool(loops))
    apart = "def kv_positions" in layout
    texts += table.operators(program, shapes(program, apart))
    if program.layer:
        texts += [layer.text(program)]
    texts += [mask_function(program.work, "torch")]
    special = program.unequal or program.work.sinks
    whole = program.free and program.backward and not special
    check = "checks/check_whole" if whole else "checks/check_rows"
    last = layer.parts(program) if program.layer else (check, "checks/check")
    texts += parts_of("torch", *last)
    usage = layer.usage(program) if program.layer else []
    keep = [*KEEP, *["kv_positions"] * apart, *layer.KEEP * program.layer]
    return assemble(docstring(program, usage), texts, keep, program.marks)


def shapes(program: Program, apart: bool) -> str:
    """The lines of `attention` that say which shapes q, k and v must have."""
    heads, kv_heads = ("q.shape[1]", "k.shape[1]") if program.any_heads else ("HEADS", "KV_HEADS")
    lines, tokens = list[str](), "len(positions(group.rank()))"
    if program.free:
        many, least = (n // program.ranks for n in (program.layout.multiple, program.least))
        whole = f"q.shape[2] // {many}) * {many}" if many > 1 else "q.shape[2])"
        tokens = f"max({least // many}, {whole}"
    each, (q, kv) = f"n, {tokens}", (heads, kv_heads)
    if apart:
        keys = "len(kv_positions(group.rank()))"
        lines = [f"queries, keys = ({heads}, {tokens}), ({kv_heads}, {keys})"]
        each, (q, kv) = "*n", ("queries", "keys")
    if program.unequal:
        lines.append(f"sizes = ({q}, HEAD_DIM), ({kv}, HEAD_DIM), ({kv}, V_HEAD_DIM)")
        lines.append(f"shapes = [[len(q), {each}, dim] for n, dim in sizes]")
    elif q == "q.shape[1]":
        each = each.replace("n", "x.shape[1]", 1)
        lines.append(f"shapes = [[len(q), {each}, HEAD_DIM] for x in (q, k, k)]")
    else:
        lines.append(f"sizes = {q}, {kv}, {kv}")
        lines.append(f"shapes = [[len(q), {each}, HEAD_DIM] for n in sizes]")
    return "\n".join(reflow(f"    {line}" for line in lines))
