"""text(program)   the part of a program that runs a plan by its tables, whatever the plan.

Short tables are printed as lists, long ones as compressed JSON.
"""

import textwrap
from collections.abc import Iterator
from typing import Any

from codegen.assemble import Part, parts_of
from codegen.packed import packed
from codegen.programs import Program
from codegen.steps import blocks, kept, refuse, steps
from codegen.text import quoted

WIDTH = 100
HEADING = """\
# ---- Tables: per rank and step what it sends [to, tensor, block, finished], what it receives
# [from, tensor, block, finished], rectangles [query blocks, key blocks, kernel calls], and copies
# that it needs no more; a block is [rank, rows of the shard, heads]."""

INTERPRETER = (
    "operators",
    "tables/table",
    "passing",
    "visitors",
    "merge",
)  # the parts that run tables


def text(program: Program) -> list[str | Part]:
    """Tables and interpreter, in the order of the program.

    Raises PlanError for a plan that begins with copies that no program can have.
    """
    refuse(program.forward, program.backward)
    return [print_table(program), *parts_of("torch", *INTERPRETER)]


def operators(program: Program, shapes: str = "") -> list[Part]:
    """Parts for autograd and compilers, and `attention` in front of it if no tables are given.

    `shapes`: the lines that say which ones it takes.
    """
    names = ["gradients"] * (program.backward is not None or program.dynamic)
    names = ["sinks", *names, "likes"]
    if program.dynamic:
        return parts_of("torch", "agree", *names)
    return parts_of("torch", "agree", "function", *names, shapes=shapes)


def tables_of(program: Program) -> dict[str, Any]:
    """The tables of a program by name, as nested lists."""
    sides, work, backward = program.forward.partition, program.work, program.backward
    keep = kept(backward, program.ranks)
    return {
        "QUERIES": blocks(sides.q, work.heads),
        "KEYS": blocks(sides.kv, work.kv_heads),
        "KEPT": keep,
        "FORWARD": steps(program.forward, keep),
        "BACKWARD": steps(backward, keep) if backward else [],
    }


def print_table(program: Program) -> str:
    """The tables as a module text."""
    tables = tables_of(program)
    lines = packed("TABLES: dict[str, Any]", tables, literal(tables))
    return "\n".join([HEADING, "", *lines]) + "\n"


def literal(tables: dict[str, Any]) -> Iterator[str]:
    """An assignment of lists, the blocks in one go, in other tables each rank on its own lines."""
    yield "TABLES: dict[str, Any] = {"
    for name, table in tables.items():
        yield f'    "{name}": ['
        if name in ("QUERIES", "KEYS", "KEPT"):
            yield from filled(", ".join(map(quoted, table)))
        else:
            for entry in table:
                yield from filled(quoted(entry))
        yield "    ],"
    yield "}  # fmt: skip"


def filled(entries: str) -> Iterator[str]:
    """Entries of a list on as few lines as fit."""
    words = textwrap.wrap(f"{entries},", WIDTH - 8, break_long_words=False)
    yield from (f"        {line}" for line in words)
