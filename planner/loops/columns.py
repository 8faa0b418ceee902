"""The rows of a step as columns: messages by tensors, rectangles, both with blocks [n, w]."""

from dataclasses import dataclass

import numpy as np

from planner.ir import Step
from planner.loops.form import Ints

Messages = tuple[Ints, Ints, Ints]  # src [n], dst [n], blocks [n, w]
Rectangles = tuple[Ints, Ints, Ints]  # rank [n], q [n, a], kv [n, b]


@dataclass(frozen=True, slots=True)
class Rows:
    """The messages and rectangles of one step."""

    moves: dict[tuple[str, ...], Messages]
    attends: Rectangles | None


def rows_of(step: Step) -> Rows:
    """A step's nodes joined; int32 as they stand in the plan."""
    moves = dict[tuple[str, ...], list[Messages]]()
    for m in step.moves:
        moves.setdefault(m.tensors, []).append((m.src, m.dst, m.blocks))
    attends = [(a.rank, a.q, a.kv) for a in step.attends]
    return Rows({k: joined(v) for k, v in moves.items()}, joined(attends) if attends else None)


def joined(parts: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    """Columns of several nodes as one."""
    if len(parts) == 1:
        return parts[0]
    first, second, third = zip(*parts, strict=True)
    return np.concatenate(first), stack(second), stack(third)


def stack(tables: tuple[Ints, ...]) -> Ints:
    """Columns [n], or tables [n, w] of any widths filled with -1, one below the other."""
    if tables[0].ndim == 1:
        return np.concatenate(tables)
    width = max(t.shape[1] for t in tables)
    whole = np.full((sum(map(len, tables)), width), -1, tables[0].dtype)
    end = 0
    for table in tables:
        whole[end : end + len(table), : table.shape[1]] = table
        end += len(table)
    return whole


def merged(rows: Rows) -> Rows:
    """The same with one message for all of the same tensors between two ranks."""
    return Rows({k: _one_per_pair(v) for k, v in rows.moves.items()}, rows.attends)


def _one_per_pair(messages: Messages) -> Messages:
    src, dst, blocks = messages
    order = np.lexsort((dst, src))
    src, dst, blocks = src[order], dst[order], blocks[order]
    first = np.ones(len(src), np.bool_)
    first[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    if first.all():
        return messages
    number = np.cumsum(first) - 1
    nth = np.arange(len(src)) - np.flatnonzero(first)[number]
    width = blocks.shape[1]
    table = np.full((int(number[-1]) + 1, int(nth.max()) + 1, width), -1, blocks.dtype)
    table[number, nth] = blocks
    return src[first], dst[first], table.reshape(len(table), -1)
