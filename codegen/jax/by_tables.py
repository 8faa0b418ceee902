"""Writes JAX programs that run a plan from tables; a dynamic program takes tables of a mask.

    schedule(program)       the tables in a program, and their interpreter
    tables(program, mask)   the argument: the tiles of a plan for a full mask, cut by another mask

A dynamic program sends the messages of the full mask under every mask. In each step, a rank has at
most `max_calls` calls; a call is a tile and one band in one box of the mask. The shapes of tables
depend only on the program.

    plan                []                             a number of the program
    forward, backward   [steps, ranks, max_calls, n]   tile, slots, and i0, i1, j0, j1, low, high
"""

from dataclasses import replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ringloom.codegen.frame import masks
from ringloom.codegen.frame.assemble import Part, parts_of
from ringloom.codegen.frame.packed import print_data
from ringloom.codegen.jax import slots
from ringloom.codegen.jax.parts.tables.arrays import calls_of, side_of, steps_of
from ringloom.codegen.programs import Program
from ringloom.codegen.steps import Tables
from ringloom.planner.errors import PlanError
from ringloom.planner.files.digest import digest
from ringloom.planner.masks import Full, Mask

FORMAT = 2  # of tables
HEADING = "# ---- Tables: blocks of queries and keys, and the messages and tiles of each step.\n\n"


def schedule(program: Program) -> list[str | Part]:
    """Returns the tables of a program, and their interpreter."""
    in_slots = slots.tables(program.forward, program.backward)
    lines = [print_data("TABLES: dict[str, Any]", in_slots)]
    if program.dynamic:
        fits_two_documents = (program.max_calls or 0) >= 2 * most_tiles(in_slots)
        cut = "KV_SEQ // 3" if fits_two_documents else 0
        lines.append(f"IDENTITY = {identity(program)}  # of the tables")
        lines.append(f"CUT = {cut}  # first token of the second document in the self-check")
    text = HEADING + "\n".join(lines) + "\n"
    return [text, *parts_of("jax", "tables/arrays", "tables/table", "masked")]


def tables(program: Program, mask: Mask | None = None) -> dict[str, NDArray[np.int32]]:
    """Returns the tables of a mask, by default of the plan's mask, for a dynamic program.

    Raises PlanError for plans that are not for a full mask, and for a mask that needs more calls in
    a step than `max_calls`.
    """
    program = with_room(program)
    work, sides = program.work, program.forward.partition
    boxes = masks.boxes(replace(work, mask=mask or work.mask), any_length=False)
    in_slots = slots.tables(program.forward, program.backward)
    queries = side_of(in_slots["QUERIES"], sides.q.shards(program.ranks), work.heads)
    keys = side_of(in_slots["KEYS"], sides.kv.shards(program.ranks), work.kv_heads)
    rules = queries, keys, work.offset, boxes, program.max_calls or 0
    passes = in_slots["PASSES"].items()
    try:
        calls = {name: calls_of(steps_of(table).tiles, *rules) for name, table in passes}
    except ValueError as error:
        raise PlanError(f"under {mask}: {error}: see --max-calls") from None
    return {"plan": np.array(identity(program), np.int32), **calls}


def with_room(program: Program) -> Program:
    """Returns the program with `max_calls`, by default twice the most tiles of a rank in a step.

    Raises PlanError if `max_calls` is too small, and if the mask is not full.
    """
    if program.work.mask != Full():
        raise PlanError(
            "a dynamic JAX program sends what a full mask needs: make its plans for the mask full,"
            f" not {program.work.mask}"
        )
    most = most_tiles(slots.tables(program.forward, program.backward))
    limit = 2 * most if program.max_calls is None else program.max_calls
    if limit < most:
        raise PlanError(f"the plan has {most} calls in a step, more than --max-calls {limit}")
    return replace(program, max_calls=limit)


def most_tiles(in_slots: Tables) -> int:
    """Returns the most tiles that a rank attends in a step."""
    steps = (step for table in in_slots["PASSES"].values() for step in table["TILES"])
    return max(1, *(len(tiles) for step in steps for tiles in step))


def identity(program: Program) -> int:
    """Returns a number that identifies the program to which tables belong."""
    text: str = f"{FORMAT} {digest(program.plans)} {program.max_calls}"
    return int(sha256(text.encode()).hexdigest()[:7], 16)
