"""JAX programs that run a plan by its tables, in the program or, tiles alone, as an argument.

    schedule(program)       the tables of a program, and their interpreter
    tables(program, mask)   the argument: the tiles of a plan for a full mask, cut by another mask

What is sent is what the plan sends, whatever the mask; a rank attends up to `max_calls` calls in a
step, a call being a tile and one band in one box. Tables of one program have one shape.

    plan                []                             which program they are for
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
HEADING = "# ---- Tables: the blocks of both sides, and what ranks do with them in each step.\n\n"


def schedule(program: Program) -> list[str | Part]:
    """The tables, what tells them from others if tiles are an argument, and the interpreter."""
    made = slots.tables(program.forward, program.backward)
    lines = [print_data("TABLES: dict[str, Any]", made)]
    if program.dynamic:
        roomy = (program.max_calls or 0) >= 2 * most_tiles(made)
        cut = "KV_SEQ // 3" if roomy else 0
        lines.append(f"IDENTITY = {identity(program)}  # of the tables")
        lines.append(f"CUT = {cut}  # where a document of the self-check begins")
    text = HEADING + "\n".join(lines) + "\n"
    return [text, *parts_of("jax", "tables/arrays", "tables/table", "masked")]


def tables(program: Program, mask: Mask | None = None) -> dict[str, NDArray[np.int32]]:
    """The tables of a mask, by default of the plan's own, for a program of these plans.

    Raises PlanError for plans that are not for a full mask, and for a mask that needs more calls in
    a step than there is room for.
    """
    program = with_room(program)
    work, sides = program.work, program.forward.partition
    boxes = masks.boxes(replace(work, mask=mask or work.mask), free=False)
    made = slots.tables(program.forward, program.backward)
    queries = side_of(made["QUERIES"], sides.q.shards(program.ranks), work.heads)
    keys = side_of(made["KEYS"], sides.kv.shards(program.ranks), work.kv_heads)
    given = queries, keys, work.offset, boxes, program.max_calls or 0
    try:
        calls = {name: calls_of(steps_of(x).tiles, *given) for name, x in made["PASSES"].items()}
    except ValueError as error:
        raise PlanError(f"under {mask}: {error}: see --max-calls") from None
    return {"plan": np.array(identity(program), np.int32), **calls}


def with_room(program: Program) -> Program:
    """The program with `max_calls`; PlanError where it is too little, or the mask not full."""
    if program.work.mask != Full():
        raise PlanError(
            "a dynamic JAX program sends what a full mask needs: make its plans for the mask full,"
            f" not {program.work.mask}"
        )
    most = most_tiles(slots.tables(program.forward, program.backward))
    given = 2 * most if program.max_calls is None else program.max_calls
    if given < most:
        raise PlanError(f"the plan has {most} calls in a step, more than --max-calls {given}")
    return replace(program, max_calls=given)


def most_tiles(made: Tables) -> int:
    """The most tiles that a rank attends in a step."""
    steps = (step for table in made["PASSES"].values() for step in table["TILES"])
    return max(1, *(len(tiles) for step in steps for tiles in step))


def identity(program: Program) -> int:
    """A number that tells the tables of this program from those of others."""
    text: str = f"{FORMAT} {digest(program.plans)} {program.max_calls}"
    return int(sha256(text.encode()).hexdigest()[:7], 16)
