"""Writes PyTorch programs that run any plan from tables, embedded or given as an argument."""

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
# ---- Tables: for each rank and step, sends [to, tensor, block, finished], receives [from, tensor,
# block, finished], rectangles to attend [query blocks, key blocks, kernel calls], and copies to
# drop. A block is [rank, rows of the shard, heads].

"""
VOCABULARY = "vocabulary/messages", "vocabulary/accumulation", "visitors", "merge"
INTERPRETER = parts_of("torch", "operators", "tables/memory", "tables/table", *VOCABULARY)


def pass_parts(program: Program) -> list[str | Part]:
    """Returns the tables of a program, unless they are an argument, and their interpreter.

    Raises PlanError for a plan with initial copies that no forward pass leaves.
    """
    if program.dynamic:
        return [*INTERPRETER]
    return [f"{HEADING}{print_data('TABLES: dict[str, Any]', tables_of(program))}\n", *INTERPRETER]


def layout_parts() -> list[str | Part]:
    """Returns the layout, the mask and the attention function of a program that takes tables."""
    return [f"FORMAT = {FORMAT}  # of tables\n", *parts_of("torch", "tables/given")]


def tables(program: Program) -> Arrays:
    """Returns the tables of a plan as arrays by name.

    sizes              format, passes, ranks, seq, kv_seq, heads, kv_heads, head_dim
    scale              the factor of scores
    mask               [n, 6]  boxes i0 <= i < i1, j0 <= j < j1, low <= j - i <= high, aligned
    q_order, q_sizes   query positions, rank after rank, and their number on each rank; kv_: keys
    steps              JSON of `ringloom.codegen.steps`, in bytes

    Raises PlanError as `ringloom.codegen.steps.tables`.
    """
    work, sides = program.work, program.forward.partition
    sizes = (program.ranks, work.seq, work.kv_seq, work.heads, work.kv_heads, work.head_dim)
    text = json.dumps(tables_of(program), separators=(",", ":"))
    arrays: Arrays = {
        "sizes": np.array([FORMAT, len(program.plans), *sizes], np.int64),
        "scale": np.array(work.softmax_scale),
        "mask": np.array(boxes(work, any_length=False), np.int64).reshape(-1, 6),
        "steps": np.frombuffer(text.encode(), np.uint8),
    }
    for name, side in (("q", sides.q), ("kv", sides.kv)):
        shards = side.shards(program.ranks)
        arrays[f"{name}_order"] = np.concatenate(shards).astype(np.int32)
        arrays[f"{name}_sizes"] = np.array([len(shard) for shard in shards], np.int64)
    return arrays


def tables_of(program: Program) -> dict[str, Any]:
    """Returns the tables of a program by name, with rectangles cut into kernel calls."""
    return steps.tables(program.forward, program.backward, cutter)
