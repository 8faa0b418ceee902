"""torch_header   the head of an emitted torch program: what it is, imports, constants."""

import json
import textwrap

from codegen import rows
from codegen.program import Program, Schedule
from codegen.rows import Ints
from planner.regions import FAR


def header(p: Program) -> str:
    """The docstring: what is computed, how, by whom, and how it was checked."""
    work = p.work
    passes = "forward and backward" if p.backward else "forward only"
    ruled = all(s.rule for s in p.passes)
    lines = [
        f'"""Attention over {p.ranks} ranks by the schedule {plain(p.name)}, {passes}.',
        "",
        f"plan      {work.seq} queries, {work.kv_seq} keys, mask {_short(str(work.mask))},",
        f"          {work.heads} query heads on {work.kv_heads} KV heads of {work.head_dim}",
        *_folded(f"layout    {p.layout_name}"),
        f"steps     {'by formulas of the rank' if ruled else 'as listed below'}, see schedule",
        *[_messages(s, name) for s, name in zip(p.passes, PASSES, strict=False)],
        "use       out = attention(q, k, v), each rank with its shard, see positions(rank)",
        "launch    under torchrun, NCCL for tensors on GPUs and gloo for tensors on CPUs",
        "checked   every query meets every key it may see exactly once, proven on the plan;",
        f"          `python FILE`, or torchrun --nproc-per-node {p.ranks} FILE, compares output",
        "          and gradients with dense attention and exits with 1 if they differ",
        '"""',
    ]
    return "\n".join(lines)


PASSES = ("forward", "backward")


def plain(text: str) -> str:
    """Text that cannot end a docstring or a comment, whatever a plan file calls its plan."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')[:80]


def _messages(schedule: Schedule, name: str) -> str:
    count = sum(len(n.src) for n in schedule.nodes if isinstance(n, rows.Move))
    known = sorted({*schedule.exchanges.values()})
    return f"          {name}: {count} messages" + (f", {' and '.join(known)}" if known else "")


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _folded(line: str) -> list[str]:
    return textwrap.wrap(line, 88, subsequent_indent=" " * 10)


def imports(p: Program) -> str:
    """What the program imports."""
    grouped = (
        "from itertools import groupby, pairwise"
        if pairwise(p)
        else "from itertools import groupby"
    )
    return f"""
import argparse
import multiprocessing.connection
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache, partial
{grouped}
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
"""


def constants(p: Program) -> str:
    """Sizes, the mask, PLAN, and what a few type names mean."""
    work, slices = p.work, p.layout
    lines = [
        f"P = {p.ranks}  # ranks",
        f"SEQ, KV_SEQ = {work.seq}, {work.kv_seq}  # queries, keys",
        f"HEADS, KV_HEADS, HEAD_DIM = {work.heads}, {work.kv_heads}, {work.head_dim}",
        f"SCALE = {work.softmax_scale!r}",
        *sign(work.softmax_scale),
        'SUMS = ("OUT", "DQ", "DKV")  # running sums; the other tensors are inputs',
        *_mask(p.mask.boxes),
        *_plan(p),
        "Ints = Flags = np.ndarray",
        "Pieces = list[tuple[tuple[range, ...], int]]  # positions, home rank",
        "Rows = Iterator[NamedTuple]  # Attend, Move and Held",
    ]
    if not dealt(p):
        lines += _slices(q=slices.q_slices, kv=slices.kv_slices)
    return "\n".join(lines)


def _mask(boxes: Ints) -> list[str]:
    """The mask's boxes, one per line."""
    names = {FAR: "FAR", -FAR: "-FAR"}
    cells = [[names.get(x, str(x)) for x in box] for box in boxes.tolist()]
    head = [
        "FAR = 2**40  # no bound",
        "# The mask: query i may see key j where i0 <= i < i1, j0 <= j < j1 and",
        "# low <= j - i <= high for one of the rows (i0, i1, j0, j1, low, high).",
    ]
    if not cells:
        return [*head, "MASK = np.zeros((0, 6), dtype=np.int64)"]
    return [
        *head,
        "MASK = np.array(",
        "    [",
        *[f"        [{', '.join(c)}]," for c in cells],
        "    ]",
        ")",
    ]


def _plan(p: Program) -> list[str]:
    work = p.work
    return [
        "PLAN = {",
        f'    "name": {json.dumps(plain(p.name))},',
        '    "ranks": P,',
        '    "seq": SEQ,',
        '    "kv_seq": KV_SEQ,',
        '    "heads": HEADS,',
        '    "kv_heads": KV_HEADS,',
        '    "head_dim": HEAD_DIM,',
        *_mask_text(str(work.mask)),
        f'    "dtype": "{work.dtype}",',
        "}",
    ]


def _mask_text(text: str) -> list[str]:
    """The mask's spelling, on lines that fit."""
    if len(text) <= 64:
        return [f'    "mask": "{text}",']
    parts = [text[a : a + 64] for a in range(0, len(text), 64)]
    return ['    "mask": (', *[f'        "{part}"' for part in parts], "    ),"]


def _slices(**sides: list[range]) -> list[str]:
    lines = ["SLICES = {  # the head slices of blocks"]
    for name, ranges in sides.items():
        lines += [f'    "{name}": [', *[f"        {_range(r)}," for r in ranges], "    ],"]
    return [*lines, "}"]


def _range(r: range) -> str:
    return f"range({r.start}, {r.stop})" if r.start else f"range({r.stop})"


def signless(p: Program) -> bool:
    """Whether kernels can take the scale as it is: they mask before they scale."""
    return p.work.softmax_scale > 0


def sign(scale: float) -> list[str]:
    """The constants that take a scale apart where kernels cannot take it as it is."""
    if scale > 0:
        return []
    sign, size = (-1.0, -scale) if scale < 0 else (0.0, 1.0)
    return [
        "# SCALE in two: kernels mask before they scale, so they get SIZE > 0, and queries SIGN.",
        f"SIGN, SIZE = {sign!r}, {size!r}",
    ]


def dealt(p: Program) -> bool:
    """Whether the program deals heads by rule."""
    return any(s.rule == "dealt" for s in p.passes)


def pairwise(p: Program) -> bool:
    """Whether the program needs itertools.pairwise."""
    return dealt(p) or pairwise_layout(p)


def pairwise_layout(p: Program) -> bool:
    """Whether the layout is made by `cut`."""
    return p.group > 1 or bool(p.layout.maker and p.layout.maker.function != "striped")
