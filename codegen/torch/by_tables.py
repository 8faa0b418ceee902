"""Torch programs that run any plan from tables, which are embedded or passed as an argument."""

import json
from typing import Any

import numpy as np

from ringloom.codegen import steps
from ringloom.codegen.frame.assemble import Part, parts_of
from ringloom.codegen.frame.masks import boxes
from ringloom.codegen.frame.packed import print_data
from ringloom.codegen.programs import Program
from ringloom.codegen.steps import Arrays
from ringloom.codegen.torch.calls import cutter

FORMAT = 3  # of tables
HEADING = """\
# ---- Tables: per rank and step what it sends [to, tensor, block, finished], what it receives
# [from, tensor, block, finished], rectangles [query blocks, key blocks, kernel calls], and copies
# that it needs no more; a block is [rank, rows of the shard, heads].

"""
VOCABULARY = "vocabulary/messages", "vocabulary/accumulation", "visitors", "merge"
INTERPRETER = parts_of("torch", "operators", "tables/memory", "tables/table", *VOCABULARY)


def passes(program: Program) -> list[str | Part]:
    """The passes of a program: its tables, if they are no argument, and their interpreter.

    Raises PlanError for a plan that begins with copies that no program can have.
    """
    if program.dynamic:
        return [*INTERPRETER]
    return [f"{HEADING}{print_data('TABLES: dict[str, Any]', tables_of(program))}\n", *INTERPRETER]


def layout() -> list[str | Part]:
    """The layout, the mask and the function to call of a program whose tables are an argument."""
    return [f"FORMAT = {FORMAT}  # of tables\n", *parts_of("torch", "tables/given")]


def tables(program: Program) -> Arrays:
    """The tables of a plan as arrays by name; PlanError as `ringloom.codegen.steps.tables`.

    sizes              format, passes, ranks, seq, kv_seq, heads, kv_heads, head_dim
    scale              what scores are multiplied by
    mask               [n, 6]  boxes i0 <= i < i1, j0 <= j < j1, low <= j - i <= high, aligned
    q_order, q_sizes   positions rank after rank, and how many each rank has; kv_ the same of keys
    steps              JSON of `ringloom.codegen.steps`, in bytes
    """
    work, sides = program.work, program.forward.partition
    sizes = (program.ranks, work.seq, work.kv_seq, work.heads, work.kv_heads, work.head_dim)
    text = json.dumps(tables_of(program), separators=(",", ":"))
    made: Arrays = {
        "sizes": np.array([FORMAT, len(program.plans), *sizes], np.int64),
        "scale": np.array(work.softmax_scale),
        "mask": np.array(boxes(work, free=False), np.int64).reshape(-1, 6),
        "steps": np.frombuffer(text.encode(), np.uint8),
    }
    for name, side in (("q", sides.q), ("kv", sides.kv)):
        shards = side.shards(program.ranks)
        made[f"{name}_order"] = np.concatenate(shards).astype(np.int32)
        made[f"{name}_sizes"] = np.array([len(shard) for shard in shards], np.int64)
    return made


def tables_of(program: Program) -> dict[str, Any]:
    """The tables of a program by name, whose rectangles are kernel calls."""
    return steps.tables(program.forward, program.backward, cutter)
