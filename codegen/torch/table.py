"""text(program)   the part of a program that runs a plan by its tables, whatever the plan.

Short tables are printed as lists, long ones as compressed JSON.
"""

import base64
import json
import textwrap
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

from codegen.assemble import Part
from codegen.masks import boxes
from codegen.programs import Program
from codegen.tables.steps import blocks, kept, refuse, steps

WIDTH = 100
LINES = 150  # of tables that are printed as lists
HEADING = """\
# ---- Tables: per rank and step what it sends [to, tensor, block, finished], what it receives
# [from, tensor, block, finished], rectangles [query blocks, key blocks, kernel calls], and copies
# that it needs no more; a block is [rank, rows of the shard, heads]."""


def text(program: Program) -> list[str | Part]:
    """Tables, interpreter and kernels, in the order of the program.

    Raises PlanError for a plan that begins with copies that no program can have.
    """
    refuse(program.forward, program.backward)
    table, packed = print_table(program)
    head: list[str | Part] = [Part("torch/parts/packed")] if packed else []
    parts = ("table", *parts_of(program))
    return [*head, table, *(Part(f"torch/parts/{name}") for name in parts)]


def parts_of(program: Program) -> tuple[str, ...]:
    """The parts with the kernels, and with what travels of OUT."""
    travels = program.backward and any("STATS" in m.tensors for _, m in program.backward.moves())
    statistics = ("statistics", "visitors") if travels else ("outputs",)
    return (*statistics, kernels(program), "merge")


def kernels(program: Program) -> str:
    """The part with the kernels that mask and scale need."""
    if program.work.softmax_scale <= 0:
        return "plain"
    return "windows" if program.dynamic or windowed(program) else "kernels"


def windowed(program: Program) -> bool:
    """True if the mask has bands with two sides."""
    work = program.work
    reach = work.kv_seq - min(0, work.offset)  # no two positions are further apart
    return any(low > -reach for *_, low, _ in boxes(work, free=False))


def keeps(program: Program) -> bool:
    """True if the forward pass keeps copies for the backward pass."""
    return bool(program.backward and program.backward.start)


def tables_of(program: Program) -> dict[str, Any]:
    """The tables of a program by name, as nested lists."""
    sides, work, backward = program.forward.partition, program.work, program.backward
    keep = kept(backward, program.ranks)
    made = {
        "QUERIES": blocks(sides.q, work.heads),
        "KEYS": blocks(sides.kv, work.kv_heads),
        "KEPT": keep,
        "FORWARD": steps(program.forward, keep),
    }
    return made | ({"BACKWARD": steps(backward, keep)} if backward else {})


def print_table(program: Program) -> tuple[str, bool]:
    """The tables as a module text, and if they are compressed."""
    tables = tables_of(program)
    if not keeps(program):
        del tables["KEPT"]
    lines = [*chain(*(literal(name, table) for name, table in tables.items()))]
    if packed := len(lines) > LINES:
        lines = [*chain(*(compressed(name, table) for name, table in tables.items()))]
    none = [] if keeps(program) else ["KEPT: Any = [[]] * RANKS"]
    return "\n".join(["from typing import Any", "", HEADING, "", *lines, *none]) + "\n", packed


def literal(name: str, table: list[Any]) -> Iterator[str]:
    """An assignment of a list, the blocks in one go, in other tables each rank on its own lines."""
    yield f"{name}: Any = ["
    if name in ("QUERIES", "KEYS", "KEPT"):
        yield from filled(", ".join(map(nested, table)))
    else:
        for entry in table:
            yield from filled(nested(entry))
    yield "]  # fmt: skip"


def filled(entries: str) -> Iterator[str]:
    """Entries of a list on as few lines as fit."""
    words = textwrap.wrap(f"{entries},", WIDTH - 4, break_long_words=False)
    yield from (f"    {line}" for line in words)


def nested(x: object) -> str:
    """A nested list as Python with double quotes."""
    return f"[{', '.join(map(nested, x))}]" if isinstance(x, list) else repr(x).replace("'", '"')


def compressed(name: str, table: list[Any]) -> Iterator[str]:
    """An assignment of compressed JSON."""
    text = json.dumps(table, separators=(",", ":"))
    code = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    yield f'{name}: Any = unpacked("""'
    yield from (code[a : a + WIDTH] for a in range(0, len(code), WIDTH))
    yield '""")'
