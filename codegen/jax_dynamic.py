"""jax_dynamic   Program -> the source of one JAX file whose mask is an argument; and its tables.

    lengths   [2]     queries and keys
    scale     []      what scores are multiplied by
    boxes     [6, n]  boxes of the mask, a column each: i0, i1, j0, j1, low, high; empty ones at the
                      end, so that the shape, and with it what is compiled, stays the same

What is sent is what the schedule sends under a full mask, whatever the mask: collectives are part
of a compiled program. Which tiles are computed is decided on the devices, from the boxes.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codegen import jax_check, jax_dynamic_text, jax_passes, jax_program, jax_routes, layouts
from codegen.jax_header import FAR
from codegen.program import Program, Shape
from codegen.rewording import reworded
from codegen.writer import source
from planner.errors import PlanError
from planner.masks import Full

BOXES = 1024  # of one mask, at least: packed documents are a box each
Tables = dict[str, NDArray[np.int32] | NDArray[np.float64]]


def tables(p: Program) -> Tables:
    """The tables of a lowered plan: its lengths, its scale, and its mask as `room` boxes.

    Raises PlanError for lengths that JAX cannot count in 32 bits.
    """
    work = p.work
    if max(work.seq, work.kv_seq) >= FAR:
        raise PlanError(f"{max(work.seq, work.kv_seq)} tokens are more than 32 bits can count")
    boxes = np.asarray(p.mask.boxes).reshape(-1, 6).clip(-FAR, FAR)
    nothing = np.array([FAR, -FAR, FAR, -FAR, FAR, -FAR])
    padded = np.vstack([boxes, np.tile(nothing, (room(len(boxes)) - len(boxes), 1))])
    return {
        "lengths": np.array([work.seq, work.kv_seq], np.int32),
        "scale": np.array(work.softmax_scale),
        "boxes": np.ascontiguousarray(padded.T, dtype=np.int32),
    }


def room(boxes: int) -> int:
    """How many boxes the tables of a mask have: a power of two, so that shapes stay few."""
    return max(BOXES, 1 << (boxes - 1).bit_length())


def write(p: Program) -> str:
    """The file, formatted as ruff formats it.

    It takes masks of as many boxes as the tables of this plan have. Raises PlanError for a schedule
    that is a list of rows for one mask, and for what `jax_program.write` refuses.
    """
    most = room(len(p.mask.boxes))
    text = reworded(jax_program.write(any_mask(p)), changes(p, most))
    unused = [jax_routes.simpler, jax_routes.effort, jax_routes.rounds_of]
    if any(schedule.rule for schedule in p.passes):
        text = reworded(text, jax_dynamic_text.RULES)
        unused += [layouts.bounds, layouts.live_pieces]
    return reworded(text, {source(function) + "\n\n": "" for function in unused})


def any_mask(p: Program) -> Program:
    """The program with the rows of a full mask, and without a mask of its own."""
    for schedule in p.passes:
        if schedule.rule is None and p.work.mask != Full():
            raise PlanError(
                f"the rows of {p.name!r} are those of its mask, {p.work.mask}: a dynamic JAX"
                " program needs a schedule that follows a rule, or a plan for the full mask"
            )
    full = [replace(s, nodes=list(jax_program.every_row(p, s))) for s in p.passes]
    return replace(
        p,
        work=replace(p.work, mask=Full()),
        mask=Shape("boxes", np.zeros((0, 6), np.int64)),
        forward=full[0],
        backward=full[1] if p.backward else None,
    )


def changes(p: Program, most: int) -> dict[str, str]:
    """What a program says otherwise if its mask is an argument."""
    functions = jax_passes.FUNCTION if p.backward else jax_passes.FUNCTION_FORWARD_ONLY
    told = jax_dynamic_text.FUNCTION
    found = {
        **jax_dynamic_text.HEADER,
        **jax_dynamic_text.KERNELS,
        **jax_dynamic_text.ATTENTION,
        functions: reworded(functions, told | (jax_dynamic_text.GRADIENT if p.backward else {})),
        **jax_dynamic_text.FORWARD,
        **(jax_dynamic_text.BACKWARD if p.backward else {}),
        jax_check.DENSE: reworded(jax_check.DENSE, jax_dynamic_text.DENSE),
        **jax_dynamic_text.CHECK,
    }
    return {old: new.replace("<most>", str(most)) for old, new in found.items()}
