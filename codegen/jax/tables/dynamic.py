"""schedule(program)       that of a table program which takes its tiles as an argument
tables(program, mask)   these tables: the tiles of a plan for a full mask, cut by another mask

What is sent is what the plan sends, whatever the mask; a rank attends up to `max_calls` calls in a
step, a call being a tile and one band in one box. Tables of one program have one shape.

    plan                []                             which program they are for
    forward, backward   [steps, ranks, max_calls, n]   tile, slots, and i0, i1, j0, j1, low, high
"""

from dataclasses import replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from codegen import masks
from codegen.assemble import Part, parts_of
from codegen.jax.parts.tables.dynamic_calls import calls_of
from codegen.jax.tables import program as table
from codegen.jax.tables.slots import Tables
from codegen.jax.tables.slots import tables as tables_of
from codegen.programs import Program
from planner.errors import PlanError
from planner.files.digest import digest
from planner.masks import Full, Mask
from planner.partitions import Side

NOWHERE = 2**30
KEEP = ("make_tables", "load")
USAGE = (
    "tables = make_tables(boxes)                    # of any mask; or load(path)",
    "out = attention(q, k, v, tables, mesh=mesh)    # differentiable; global, in layout order",
    "q = shard(whole, rank)                         # a rank's part; unshard is the inverse",
)


def schedule(program: Program) -> list[str | Part]:
    """The tables, those of both passes together."""
    rows = ['"forward": numbers(FORWARD_ROWS, 5)', '"backward": numbers(BACKWARD_ROWS, 8)']
    roomy = (program.max_calls or 0) >= 2 * most_tiles(program)
    more = [
        f"ROWS = {{{', '.join(rows[: len(program.plans)])}}}",
        f"IDENTITY = {identity(program)}  # of the tables",
        f"CUT = {'KV_SEQ // 3' if roomy else 0}  # where a document of the self-check begins",
    ]
    return [*table.schedule(program, *more), *parts_of("jax", "tables/dynamic_calls")]


def tables(program: Program, mask: Mask | None = None) -> dict[str, NDArray[np.int32]]:
    """The tables of a mask, by default of the plan's own, for a program of these plans.

    Raises PlanError for plans that are not for a full mask, and for a mask that needs more calls in
    a step than there is room for.
    """
    program = with_room(program)
    work, sides = program.work, program.forward.partition
    boxes = masks.boxes(replace(work, mask=mask or work.mask), free=False)
    spans = spans_of(sides.q, work.offset), spans_of(sides.kv, 0)
    made = {"plan": np.array(identity(program), np.int32)}
    both = tables_of(program.forward, program.backward)
    for plan, of_pass in zip(program.plans, both, strict=True):
        tiles = tiles_of(of_pass, plan.pass_)
        try:
            made[plan.pass_] = calls_of(tiles, *spans, boxes, program.max_calls or 0)
        except ValueError as error:
            raise PlanError(
                f"the {plan.pass_} pass under {mask}: {error}: see --max-calls"
            ) from None
    return made


def with_room(program: Program) -> Program:
    """The program with `max_calls`; PlanError where it is too little, or the mask not full."""
    if program.work.mask != Full():
        raise PlanError(
            "a dynamic JAX program sends what a full mask needs: make its plans for the mask full,"
            f" not {program.work.mask}"
        )
    most = most_tiles(program)
    given = 2 * most if program.max_calls is None else program.max_calls
    if given < most:
        raise PlanError(f"the plan has {most} calls in a step, more than --max-calls {given}")
    return replace(program, max_calls=given)


def most_tiles(program: Program) -> int:
    """The most tiles that a rank attends in a step."""
    made = zip(program.plans, tables_of(program.forward, program.backward), strict=True)
    return max(int(tiles_of(table, plan.pass_).shape[2]) for plan, table in made)


def tiles_of(table: Tables, pass_: str) -> NDArray[np.int64]:
    """The tiles of a pass [steps, ranks, n, numbers]."""
    width = 5 if pass_ == "forward" else 8
    steps = [step for section in table.sections for step in section.tiles]
    most = max(len(row) for step in steps for row in step) // width
    tiles = np.full((len(steps), len(steps[0]), most * width), NOWHERE)
    for s, step in enumerate(steps):
        for r, row in enumerate(step):
            tiles[s, r, : len(row)] = row
    return tiles.reshape(*tiles.shape[:2], most, width)


def spans_of(side: Side, offset: int) -> NDArray[np.int64]:
    """The first and the last aligned position of each block; of none a span before all."""
    spans = [
        (min(p.start for p in part), max(p[-1] for p in part)) if part else (2**29, -1)
        for part in side.chunks
    ]
    return np.array(spans, np.int64)[side.chunk] + offset


def identity(program: Program) -> int:
    """A number that tells the tables of this program from those of others."""
    text: str = f"{digest(program.plans)} {program.max_calls}"
    return int(sha256(text.encode()).hexdigest()[:7], 16)
