"""Torch programs: loops printed as a file of one attention function and its check."""

from codegen.assemble import Part, assemble
from codegen.header import constants, docstring
from codegen.layout_text import layout_text
from codegen.masks import mask_function
from codegen.programs import Program
from codegen.torch.schedule import print_loops
from codegen.torch.table import windowed
from planner.errors import PlanError

KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program."""
    if program.loops is None:
        raise PlanError("tables")
    printed = print_loops(program.plans, program.loops)
    schedule = printed.text
    layout = layout_text(program.layout, "torch")
    checked = min(program.work.seq, 512 * program.ranks) if program.free else program.work.seq
    heads = "q.shape[1], k.shape[1]" if program.any_heads else "HEADS, KV_HEADS"
    keys = "kv_positions" if "def kv_positions" in layout else "positions"
    tokens = "q.shape[2], q.shape[2]" if program.free else f"len(positions(rank)), len({keys}(rank))"
    shapes = f'''
def expected(q, k, rank):
    """The heads of queries and keys, and their tokens, that a rank's shards have."""
    return {heads}, {tokens}
'''
    sizes = f"CHECKED = {checked}\nPIECES = {max(1, program.layout.multiple // program.ranks)}\n"
    parts = ("passing", "heads", "gathering", "groups_mesh", "merge", "windows" if windowed(program) else "kernels", "triangles" if "triangles" in printed.uses else "bands", "visitors", "stand_in", "function", "gradients",
             "shards")
    texts: list[str | Part] = [constants(program), sizes, layout, schedule, shapes]
    texts += [Part(f"torch/parts/{name}") for name in parts]
    texts += [mask_function(program.work, "torch"), Part("torch/parts/check")]
    keep = KEEP + ("kv_positions",) * ("def kv_positions" in layout)
    return assemble(docstring(program), texts, keep)
