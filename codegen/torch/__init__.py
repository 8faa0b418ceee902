"""Writes PyTorch programs: an attention function, as loops or by tables, and its self-check."""

from collections.abc import Sequence

from ringloom.codegen.frame.assemble import PACKED, Part, assemble, parts_of
from ringloom.codegen.frame.header import constants, docstring
from ringloom.codegen.frame.layout_text import layout_text
from ringloom.codegen.frame.masks import mask_function
from ringloom.codegen.programs import Program
from ringloom.codegen.torch import by_tables
from ringloom.codegen.torch.by_tables import tables
from ringloom.codegen.torch.schedule import schedule
from ringloom.planner.errors import PlanError

__all__ = ["tables", "write"]
CALLED_PARTS = "vocabulary/messages", "vocabulary/accumulation", "bands", "visitors", "merge"


def write(program: Program) -> str:
    """Returns the text of a program: its lowered passes where they can be printed, else tables."""
    if program.lowered is not None:
        try:
            printed = schedule(program)
            first, *others = parts_of("torch", "operators", *CALLED_PARTS)
            return assembled(program, [first, printed, *others])
        except PlanError as error:
            program = program.as_tables(str(error))
    return assembled(program, by_tables.pass_parts(program))


def assembled(program: Program, passes: Sequence[str | Part]) -> str:
    """Returns the text of a program from the text of its passes; dynamic ones take tables."""
    fixed, layout = not program.dynamic, layout_text(program.layout, "torch", program.any_length)
    entry_point = "attention_with_sinks" if program.work.sinks else "attention"
    texts = [
        *[constants(program), PACKED],
        *([layout, *parts_of("torch", "layout")] if fixed else by_tables.layout_parts()),
        *passes,
        *parts_of("torch", "kernels", "agree", *[entry_point] * fixed, "function"),
        *parts_of("torch", *["shapes"] * fixed, "sinks", "autograd"),
        *[mask_function(program.work, "torch")] * fixed,
        *parts_of("torch", "compared", "check"),
    ]
    return assemble(docstring(program), texts, program.interface, program.choices)
