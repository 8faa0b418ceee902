"""write(program), tables(program)   a program whose tables are an argument, and the tables."""

import json

import numpy as np

from codegen.frame.assemble import Part, assemble, parts_of
from codegen.frame.header import constants, docstring
from codegen.frame.masks import boxes
from codegen.programs import Program
from codegen.steps import Arrays
from codegen.torch.by_tables import table
from planner.partitions import Side

FORMAT = 2
KEEP = (
    *("PLAN", "load", "example", "positions", "kv_positions"),
    *("attention", "shard", "unshard", "main"),
)
USAGE = (
    "tables = load(path)                # of `ringloom tables torch SCHEDULE ... -o FILE`",
    "out = attention(q, k, v, tables)   # differentiable; local shards [batch, heads, tokens, {}]",
    "q = shard(whole, rank, tables)     # a rank's part; unshard is the inverse",
)


def write(program: Program) -> str:
    """The file, for any plan of the same ranks and heads."""
    usage = [line.format(program.work.head_dim) for line in USAGE]
    own = f"FORMAT = {FORMAT}  # of tables\nCHECKED = {64 * program.ranks}  # tokens, by default\n"
    texts: list[str | Part] = [constants(program), own]
    texts += parts_of("torch", "tables/given", *table.INTERPRETER, "kernels", "sums")
    texts += table.operators(program)
    texts += parts_of("torch", "checks/check_rows", "checks/check")
    return assemble(docstring(program, usage), texts, KEEP, program.choices)


def tables(program: Program) -> Arrays:
    """The tables of a plan as arrays by name; PlanError as `codegen.steps.tables`.

    sizes              format, passes, ranks, seq, kv_seq, heads, kv_heads, head_dim
    scale              what scores are multiplied by
    mask               [n, 6]  boxes i0 <= i < i1, j0 <= j < j1, low <= j - i <= high, aligned
    q_order, q_sizes   positions rank after rank, and how many each rank has; kv_ the same of keys
    steps              JSON of `codegen.steps`, in bytes
    """
    work, sides = program.work, program.forward.partition
    sizes = (program.ranks, work.seq, work.kv_seq, work.heads, work.kv_heads, work.head_dim)
    text = json.dumps(table.tables_of(program), separators=(",", ":"))
    return {
        "sizes": np.array([FORMAT, len(program.plans), *sizes], np.int64),
        "scale": np.array(work.softmax_scale),
        "mask": np.array(boxes(work, free=False), np.int64).reshape(-1, 6),
        **order("q", sides.q, program.ranks),
        **order("kv", sides.kv, program.ranks),
        "steps": np.frombuffer(text.encode(), np.uint8),
    }


def order(name: str, side: Side, ranks: int) -> Arrays:
    """The positions of all ranks, one rank after the other, and how many each has."""
    shards = side.shards(ranks)
    return {
        f"{name}_order": np.concatenate(shards).astype(np.int32),
        f"{name}_sizes": np.array([len(shard) for shard in shards], np.int64),
    }
