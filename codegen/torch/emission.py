"""written(program)   a torch program printed from the program IR, as a whole file."""

import subprocess

from ruff.__main__ import find_ruff_bin  # type: ignore[import-untyped]

from codegen.assemble import PACKED, Part, assemble, parts_of
from codegen.check import check
from codegen.header import constants, docstring
from codegen.ir import Register
from codegen.layout_text import layout_text
from codegen.lower import lower
from codegen.lowering.keeping import kept
from codegen.masks import mask_function
from codegen.passes import optimized
from codegen.programs import Program
from codegen.torch import KEEP, seen, shapes
from codegen.torch.by_tables import table
from codegen.torch.operands import Form
from codegen.torch.printer import print_pass
from codegen.torch.schedule import likes_function
from codegen.words import SIZES
from planner.errors import PlanError
from planner.loops.expand import Expansion
from planner.loops.form import Ints
from planner.loops.pieces import recovered_by_piece

VOCABULARY = "vocabulary/messages", "vocabulary/accumulation"
PARTS = "merge", "kernels", "sums", "bands", "visitors"


def schedule(program: Program) -> str:
    """The passes of a program, checked; PlanError for what the program IR has no op for."""
    passes = [recovered_by_piece(plan) for plan in program.plans]
    kept_ = kept(passes)
    sides = program.forward.partition
    layout = layout_text(program.layout, "torch", program.free)
    form = Form(program.free, "def kv_positions" in layout, len(sides.q.slices))
    lines, held = list[str](), dict[Register, Ints]()
    if program.work.sinks or program.unequal:
        raise PlanError("sinks, and values of other dimensions than keys, have no op yet")
    bodies = list[list[str]]()
    for rows in passes:
        lowered = optimized(lower(rows, kept_))
        held = check(lowered, rows, held)
        bodies.append(print_pass(lowered, form))
    mesh, *others = {rows.loops.mesh for rows in passes}
    if others:
        raise PlanError("the two passes arrange the ranks in different meshes")
    lines += [f"STEP = {step_of(passes[0])}", f"MESH = {mesh}"]
    if len(mesh) > 1:
        lines.append(f"{', '.join(SIZES[len(mesh)])} = MESH")
    lines += [f"{name} = {values}" for name, values in form.data.items()]
    for body in bodies:
        lines += ["", "", *body]
    if kept_:
        lines += likes_function(passes[0].loops, program.unequal)
    return "\n".join(lines) + "\n"


def step_of(rows: Expansion) -> int:
    """The distance between the tokens of a piece; PlanError unless it is the same in all."""
    sides = rows.plan.partition
    chunks = [c for side in (sides.q, sides.kv) for c in side.chunks]
    if any(len(c) != 1 for c in chunks):
        raise PlanError("pieces are no ranges of the sequence")
    step, *others = {c[0].step for c in chunks}
    if others:
        raise PlanError("tokens of different pieces lie at different distances")
    return step


def formatted(text: str) -> str:
    """A program whose long lines are broken."""
    command = [find_ruff_bin(), "format", "--line-length", "100", "-"]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return run.stdout


def written(program: Program) -> str:
    """The text of a program that is printed from loops."""
    layout = layout_text(program.layout, "torch", program.free)
    apart = "def kv_positions" in layout
    texts: list[str | Part] = [
        constants(program),
        PACKED,
        layout,
        *parts_of("torch", "operators"),
        schedule(program),
    ]
    texts += parts_of("torch", *VOCABULARY, *PARTS)
    texts += table.operators(program, shapes(program, apart))
    texts += [mask_function(program.work, "torch")]
    whole = program.free and program.backward
    checks = "checks/check_whole" if whole else "checks/check_rows"
    texts += parts_of("torch", checks, "checks/check", **seen(program, 4 if whole else 8))
    keep = [*KEEP, *["kv_positions"] * apart]
    marks = (program.marks - {"tabled"}) | {
        "regular",
        "many",
        "several",
        "keys",
        "apart" if apart else "alike",
    }
    return formatted(
        assemble(docstring(program), texts, keep, marks, program.choices | {"APART": apart})
    )
