"""Torch programs: one attention function, printed from loops or by tables, and its check."""

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
CALLED = "vocabulary/messages", "vocabulary/accumulation", "bands", "visitors", "merge"


def write(program: Program) -> str:
    """The text of a program: its lowered passes where they can be printed, else tables."""
    if program.lowered is not None:
        try:
            printed = schedule(program)
            first, *called = parts_of("torch", "operators", *CALLED)
            return written(program, [first, printed, *called])
        except PlanError as error:
            program = program.as_tables(str(error))
    return written(program, by_tables.passes(program))


def written(program: Program, passes: Sequence[str | Part]) -> str:
    """A program of these passes, for its plan or for those that tables describe."""
    bound, where = not program.dynamic, layout_text(program.layout, "torch", program.free)
    called = "attention_with_sinks" if program.work.sinks else "attention"
    texts = [
        *[constants(program), PACKED],
        *([where, *parts_of("torch", "layout")] if bound else by_tables.layout()),
        *passes,
        *parts_of("torch", "kernels", "agree", *[called] * bound, "function"),
        *parts_of("torch", *["shapes"] * bound, "sinks", "autograd"),
        *[mask_function(program.work, "torch")] * bound,
        *parts_of("torch", "compared", "check"),
    ]
    return assemble(docstring(program), texts, program.interface, program.choices)
