"""Torch programs: loops printed as a file of one attention function and its check."""

from codegen.assemble import Part, assemble
from codegen.header import constants, docstring
from codegen.layout_text import layout_text
from codegen.masks import mask_function
from codegen.programs import Program
from codegen.torch.schedule import print_loops
from planner.errors import PlanError

KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program."""
    if program.loops is None:
        raise PlanError("tables")
    schedule = print_loops(program.plans, program.loops)
    layout = layout_text(program.layout, "torch")
    checked = min(program.work.seq, 512 * program.ranks) if program.free else program.work.seq
    sizes = f"CHECKED = {checked}\nPIECES = {program.layout.multiple // program.ranks}\n"
    parts = ("passing", "merge", "kernels", "visitors", "stand_in", "function", "gradients",
             "groups", "shards", "dense")
    texts: list[str | Part] = [constants(program), sizes, layout, schedule]
    texts += [Part(f"torch/parts/{name}") for name in parts]
    texts += [mask_function(program.work, "torch"), Part("torch/parts/check")]
    keep = KEEP + ("kv_positions",) * ("def kv_positions" in layout)
    return assemble(docstring(program), texts, keep)
