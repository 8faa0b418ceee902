"""Torch programs: one attention function, printed from loops or by tables, and its check."""

from codegen.assemble import Part, assemble
from codegen.header import constants, docstring
from codegen.layout_text import layout_text
from codegen.masks import mask_function
from codegen.programs import Program
from codegen.torch import dynamic, layer, table
from codegen.torch.dynamic import tables
from codegen.torch.schedule import Printed, print_loops
from planner.errors import PlanError

__all__ = ["tables", "write"]
KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program."""
    if program.dynamic:
        return dynamic.write(program)
    if program.loops is not None:
        try:
            return loops_program(program, print_loops(program.plans, program.loops))
        except PlanError as error:
            program = program.as_tables(str(error))
    return table.write(program)


def loops_program(program: Program, printed: Printed) -> str:
    """The program of a printed schedule."""
    layout, kept = layout_text(program.layout, "torch"), "_keeping" * printed.keeps
    apart = ("kv_positions",) * ("def kv_positions" in layout)
    names = [
        *("passing", "heads", "gathering", "groups_mesh", "merge", table.kernels(program)),
        "triangles" if "triangles" in printed.uses else "bands",
        *("visitors", "stand_in", f"function{kept}"),
        *([f"gradients{kept}"] if program.backward else []),
        "shards",
    ]
    texts: list[str | Part] = [constants(program), sizes(program), layout, printed.text]
    keep, usage = (*KEEP, *apart), list[str]()
    last = ["check" if program.backward else "check_forward"]
    if program.layer:
        texts.append(layer.text(program))
        last = [*layer.parts(program, printed.keeps)]
        keep, usage = (*keep, *layer.KEEP), layer.usage(program)
    texts += [Part(f"torch/parts/{name}") for name in names]
    texts += [expected(program, layout), mask_function(program.work, "torch")]
    texts += [Part(f"torch/parts/{name}") for name in last]
    return assemble(docstring(program, usage), texts, keep)


def sizes(program: Program) -> str:
    """The constants of the shape check and the self-check."""
    seq = program.work.seq
    checked = min(seq, 512 * program.ranks) if program.free else seq
    return f"CHECKED, PIECES = {checked}, {max(1, program.layout.multiple // program.ranks)}\n"


def expected(program: Program, layout: str) -> str:
    """The function that says which shapes shards have."""
    heads = "q.shape[1], k.shape[1]" if program.any_heads else "HEADS, KV_HEADS"
    keys = "kv_positions" if "def kv_positions" in layout else "positions"
    tokens = f"len(positions(rank)), len({keys}(rank))"
    if program.free:
        tokens = "q.shape[2], q.shape[2]"
    return f"""
def expected(q, k, rank):
    # the heads of queries and keys, and their tokens
    return {heads}, {tokens}
"""
