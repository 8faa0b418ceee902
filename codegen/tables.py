"""tables   a schedule or a layout that follows no rule, as lines that a person can read.

    held: KV 0-3 on 5                copies of KV blocks 0 to 3 are on rank 5 from the start
    2: KV 4 6 from 0 to 5            in step 2 rank 0 sends rank 5 these blocks, in one message
    2: 5 attends 1 2 x 0-3           in step 2 rank 5 attends q blocks 1, 2 to kv blocks 0 to 3

    5: 0-15 64-127:4                 a piece of a layout: its home rank and its positions

`read` functions are written into emitted programs word for word.
"""

import textwrap
from collections.abc import Iterator

import numpy as np

from codegen.rows import Attend, Held, Ints, Move, Rows

WIDTH = 88


def write_schedule(nodes: list[Attend | Move | Held]) -> list[str]:
    """The lines that say what the nodes say, one record per row."""
    lines = [record for node in nodes for record in _records(node)]
    return [line for record in lines for line in _wrapped(record)]


def _records(node: Attend | Move | Held) -> Iterator[str]:
    if isinstance(node, Attend):
        for rank, q, kv in zip(node.rank, node.q, node.kv, strict=True):
            yield f"{node.step}: {rank} attends {runs(q)} x {runs(kv)}"
    elif isinstance(node, Move):
        tensors = "+".join(node.tensors)
        for blocks, src, dst in zip(node.blocks, node.src, node.dst, strict=True):
            yield f"{node.step}: {tensors} {runs(blocks)} from {src} to {dst}"
    else:
        for blocks, rank in zip(node.blocks, node.rank, strict=True):
            yield f"held: {'+'.join(node.tensors)} {runs(blocks)} on {rank}"


def runs(blocks: Ints) -> str:
    """Block numbers with runs of neighbours as a-b; -1s are left out."""
    found: list[list[int]] = []
    for block in blocks[blocks >= 0].tolist():
        if found and found[-1][1] == block - 1:
            found[-1][1] = block
        else:
            found.append([block, block])
    return " ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in found)


def _wrapped(record: str) -> list[str]:
    return textwrap.wrap(record, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def write_pieces(pieces: list[tuple[tuple[range, ...], int]]) -> list[str]:
    """The lines that say where each piece of a layout is and which positions it has."""
    records = (f"{home}: {' '.join(map(_span, filter(len, piece)))}" for piece, home in pieces)
    return [line for record in records for line in _wrapped(record)]


def _span(part: range) -> str:
    if len(part) == 1:
        return f"{part[0]}"
    return f"{part[0]}-{part[-1]}" + (f":{part.step}" if part.step > 1 else "")


def read_schedule(text: str) -> Rows:
    """The rows of a schedule: "2: KV 4 6 from 0 to 5", "2: 5 attends 1 2 x 0-3", "held: ..."."""
    for line in text.strip().replace("\n  ", " ").splitlines():
        step, what = line.split(": ")
        if "attends" in what:
            rank, _, blocks = what.partition(" attends ")
            q, kv = map(read_blocks, blocks.split(" x "))
            yield Attend(int(step), np.array([int(rank)]), q, kv)
        elif step == "held":
            what, rank = what.split(" on ")
            tensors, _, blocks = what.partition(" ")
            names, at = tuple(tensors.split("+")), np.array([int(rank)])
            yield Held(names, read_blocks(blocks), at)
        else:
            what, ends = what.split(" from ")
            tensors, _, blocks = what.partition(" ")
            src, dst = (np.array([int(end)]) for end in ends.split(" to "))
            names = tuple(tensors.split("+"))
            yield Move(int(step), names, read_blocks(blocks), src, dst)


def read_blocks(text: str) -> Ints:
    """The block numbers of one row, [1, n]: "4 6-8" is 4, 6, 7, 8."""
    ends = [part.partition("-") for part in text.split()]
    return np.array([[n for a, _, b in ends for n in range(int(a), int(b or a) + 1)]])


def read_pieces(text: str) -> list[tuple[tuple[range, ...], int]]:
    """The pieces of a layout, one per line: "5: 0-15 64-127:4" lives on rank 5."""
    pieces = []
    for line in text.strip().replace("\n  ", " ").splitlines():
        home, _, spans = line.partition(":")
        pieces.append((tuple(map(read_span, spans.split())), int(home)))
    return pieces


def read_span(text: str) -> range:
    """A range of positions, ends included: "7", "0-15", "64-127:4"."""
    ends, _, step = text.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))
