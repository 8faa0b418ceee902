"""jax_header   the head of an emitted JAX program: what it is, imports, constants."""

import json
import textwrap
from collections.abc import Iterator

from codegen import layouts
from codegen.jax_routes import Loops, Route
from codegen.program import Program
from codegen.rows import Ints, Move

FAR = 2**31 - 1  # no bound; positions are below it, and JAX counts in 32 bits
TILE = 512, 128  # queries and keys of a tile: the best of 256 to 1024 by 64 to 1024 on CPUs


def header(p: Program, loops: list[Loops]) -> str:
    """The docstring: what is computed, how, by whom, and how it was checked."""
    work = p.work
    passes = "forward and backward" if p.backward else "forward only"
    ruled = all(s.rule for s in p.passes)
    shards = [_shard(side, p.ranks) for side in (p.layout.q, p.layout.kv)]
    lines = [
        f'"""Attention over {p.ranks} ranks by the schedule {plain(p.name)}, {passes}.',
        "",
        f"plan      {work.seq} queries, {work.kv_seq} keys, mask {_short(str(work.mask))},",
        f"          {work.heads} query heads on {work.kv_heads} KV heads of {work.head_dim}",
        *textwrap.wrap(f"layout    {p.layout_name}", 88, subsequent_indent=" " * 10),
        f"steps     {'by formulas of the rank' if ruled else 'as listed below'}, see schedule",
        *_messages(p, loops),
        f"padding   a shard has {shards[0]} queries and {shards[1]} keys, with position -1 where",
        "          there is no token",
        "use       out = attention(q, k, v, mesh=Mesh(jax.devices(), ('sp',))), global arrays",
        "          [batch, heads, tokens, head_dim], tokens in layout order: shard after shard",
        "launch    as one process with all devices, or as several that first called",
        "          jax.distributed.initialize; CPUs, GPUs, TPUs",
        "checked   every query meets every key it may see exactly once, proven on the plan;",
        f"          `python FILE` compares output and gradients with dense attention on {p.ranks}",
        "          devices (virtual ones on a CPU) and exits with 1 if they differ",
        '"""',
    ]
    return "\n".join(lines)


def _messages(p: Program, loops: list[Loops]) -> Iterator[str]:
    """What the plan sends, and what is sent where all devices do the same at once."""
    for name, schedule, chosen in zip(("forward", "backward"), p.passes, loops, strict=False):
        planned = sum(len(n.src) for n in schedule.nodes if isinstance(n, Move))
        sent = executed(chosen)
        yield f"          {name}: {planned} messages planned, {sent} sent, empty ones included"


def executed(loops: Loops) -> int:
    """How many messages the collectives carry, empty ones included."""
    return sum(len(loop) * _carried(route) for loop in loops for route in loop[0].routes)


def _carried(route: Route) -> int:
    """The messages of one collective, empty ones included."""
    return int((route.to >= 0).sum()) or len(route.blocks) * (route.group - 1)


def plain(text: str) -> str:
    """Text that cannot end a docstring or a comment, whatever a plan file calls its plan."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')[:80]


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _shard(pieces: layouts.Pieces, ranks: int) -> int:
    """Tokens of a shard, padding included."""
    longest = max(1, *(sum(map(len, piece)) for piece, _ in pieces), 1)
    return int(layouts.owned(pieces, ranks).shape[1]) * longest


def imports(cuts: bool) -> str:
    """What the program imports; `cuts`: the layout needs pairwise."""
    pairwise = "from itertools import pairwise\n" if cuts else ""
    return f"""
import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
{pairwise}from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
"""


def constants(p: Program) -> str:
    """Sizes, the mask, PLAN, and what a few type names mean."""
    work = p.work
    sums = ("Q", "KV", "OUT"), ("Q", "DOUT", "STATS", "KV", "DQ", "DKV")
    lines = [
        f"P = {p.ranks}  # ranks",
        f"SEQ, KV_SEQ = {work.seq}, {work.kv_seq}  # queries, keys",
        f"HEADS, KV_HEADS, HEAD_DIM = {work.heads}, {work.kv_heads}, {work.head_dim}",
        f"SCALE = {work.softmax_scale!r}",
        f"TILE = {TILE[0]}, {TILE[1]}  # most queries and keys of a tile; measure others elsewhere",
        "TENSORS = (  # of each pass: inputs, then running sums",
        *[f"    {json.dumps(tensors).replace('[', '(').replace(']', ')')}," for tensors in sums][
            : len(p.passes)
        ],
        ")",
        *_mask(p.mask.boxes.clip(-FAR, FAR)),
        *_plan(p),
        "Ints = Flags = np.ndarray",
        "Pieces = list[tuple[tuple[range, ...], int]]  # positions, home rank",
        "Rows = Iterator[NamedTuple]  # Attend, Move and Held",
        "Node, Loops = NamedTuple, list[list[NamedTuple]]",
    ]
    return "\n".join(lines)


def _mask(boxes: Ints) -> list[str]:
    """The mask's boxes, one per line."""
    names = {FAR: "FAR", -FAR: "-FAR"}
    cells = [[names.get(x, str(x)) for x in box] for box in boxes.tolist()]
    head = [
        "FAR = 2**31 - 1  # no bound",
        "# The mask: query i may see key j where i0 <= i < i1, j0 <= j < j1 and",
        "# low <= j - i <= high for one of the rows (i0, i1, j0, j1, low, high).",
    ]
    if not cells:
        return [*head, "MASK = np.zeros((0, 6), dtype=np.int32)"]
    rows = [f"        [{', '.join(c)}]," for c in cells]
    return [*head, "MASK = np.array(", "    [", *rows, "    ],", "    dtype=np.int32,", ")"]


def _plan(p: Program) -> list[str]:
    return [
        "PLAN = {",
        f'    "name": {json.dumps(plain(p.name))},',
        '    "ranks": P,',
        '    "seq": SEQ,',
        '    "kv_seq": KV_SEQ,',
        '    "heads": HEADS,',
        '    "kv_heads": KV_HEADS,',
        '    "head_dim": HEAD_DIM,',
        *_mask_text(str(p.work.mask)),
        f'    "dtype": "{p.work.dtype}",',
        "}",
    ]


def _mask_text(text: str) -> list[str]:
    """The mask's spelling, on lines that fit."""
    if len(text) <= 64:
        return [f'    "mask": "{text}",']
    parts = [text[a : a + 64] for a in range(0, len(text), 64)]
    return ['    "mask": (', *[f'        "{part}"' for part in parts], "    ),"]
