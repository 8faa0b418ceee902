"""write(program)   a program that runs a plan by its tables, whatever the plan.

Short tables are printed as lists, long ones as compressed JSON.
"""

import base64
import json
import textwrap
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

from codegen.assemble import Part, assemble
from codegen.header import constants, docstring
from codegen.layout_text import layout_text
from codegen.masks import boxes, mask_function
from codegen.programs import Program
from codegen.tables.steps import blocks, kept, refuse, steps
from codegen.torch import layer

KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")
WIDTH = 100
LINES = 150  # of tables that are printed as lists
HEADING = """\
# ---- Tables: per rank and step what it sends [to, tensor, block, finished], what it receives
# [from, tensor, block, finished], rectangles [query blocks, key blocks, kernel calls], and copies
# that it needs no more; a block is [rank, rows of the shard, heads]."""


def write(program: Program) -> str:
    """The file; PlanError for a plan that begins with copies that no program can have."""
    refuse(program.forward, program.backward)
    layout, keeping = layout_text(program.layout, "torch"), "_keeping" * keeps(program)
    apart = ("kv_positions",) * ("def kv_positions" in layout)
    texts: list[str | Part] = [constants(program), sizes(program, bool(apart)), layout]
    texts += schedule(program)
    names = [f"function{keeping}", *[f"gradients{keeping}"] * bool(program.backward), "shards"]
    keep, usage = (*KEEP, *apart), list[str]()
    last = ["check" if program.backward else "check_forward"]
    if program.layer:
        texts.append(layer.text(program))
        keep, usage, last = (
            (*keep, *layer.KEEP),
            layer.usage(program),
            [*layer.parts(program, bool(keeping))],
        )
    texts += [Part(f"torch/parts/{name}") for name in names]
    texts += [mask_function(program.work, "torch"), *(Part(f"torch/parts/{name}") for name in last)]
    return assemble(docstring(program, usage), texts, keep)


def sizes(program: Program, apart: bool) -> str:
    """What parts ask of a program: lengths to check, and the shapes of shards."""
    heads = "q.shape[1], k.shape[1]" if program.any_heads else "HEADS, KV_HEADS"
    keys = "kv_positions" if apart else "positions"
    lines = (
        *("from torch import Tensor", "", f"CHECKED = {program.work.seq}", "PIECES = 1", "", ""),
        "def expected(q: Tensor, k: Tensor, rank: int) -> tuple[int, int, int, int]:",
        '    """The heads of queries and keys, and their tokens, that a rank\'s shards have."""',
        f"    return {heads}, len(positions(rank)), len({keys}(rank))",
    )
    return "\n".join(lines) + "\n"


def schedule(program: Program) -> list[str | Part]:
    """Tables, interpreter and kernels, in the order of the program."""
    table, packed = print_table(program)
    passes = "table_keeping" if keeps(program) else "table_here"
    parts = ("table", passes, *parts_of(program))
    head: list[str | Part] = [Part("torch/parts/packed")] if packed else []
    return [*head, table, *(Part(f"torch/parts/{name}") for name in parts)]


def parts_of(program: Program) -> tuple[str, ...]:
    """The parts with the kernels, and with what travels of OUT."""
    travels = program.backward and any("STATS" in m.tensors for _, m in program.backward.moves())
    statistics = ("statistics", "stand_in") if travels else ("outputs",)
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
        "FORWARD": steps(program.forward, keep),
    }
    if backward:
        made["BACKWARD"] = steps(backward, keep)
    return made | ({"KEPT": keep} if keeps(program) else {})


def print_table(program: Program) -> tuple[str, bool]:
    """The tables as a module text, and if they are compressed."""
    tables = tables_of(program)
    lines = [*chain(*(literal(name, table) for name, table in tables.items()))]
    if packed := len(lines) > LINES:
        lines = [*chain(*(compressed(name, table) for name, table in tables.items()))]
    return "\n".join(["from typing import Any", "", HEADING, "", *lines]) + "\n", packed


def literal(name: str, table: list[Any]) -> Iterator[str]:
    """An assignment of a list, the blocks in one go, in other tables each rank on its own lines."""
    yield f"{name}: Any = ["
    if name in ("QUERIES", "KEYS"):
        yield from filled(", ".join(map(text, table)))
    else:
        for entry in table:
            yield from filled(text(entry))
    yield "]  # fmt: skip"


def filled(entries: str) -> Iterator[str]:
    """Entries of a list on as few lines as fit."""
    words = textwrap.wrap(f"{entries},", WIDTH - 4, break_long_words=False)
    yield from (f"    {line}" for line in words)


def text(x: object) -> str:
    """A nested list as Python with double quotes."""
    return f"[{', '.join(map(text, x))}]" if isinstance(x, list) else repr(x).replace("'", '"')


def compressed(name: str, table: list[Any]) -> Iterator[str]:
    """An assignment of compressed JSON."""
    text = json.dumps(table, separators=(",", ":"))
    code = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    yield f'{name}: Any = unpacked("""'
    yield from (code[a : a + WIDTH] for a in range(0, len(code), WIDTH))
    yield '""")'
