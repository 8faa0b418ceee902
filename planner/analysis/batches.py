"""Many small nodes looked at together: a numpy call takes as long for ten rows as for a thousand.

    attends     (attends of the same widths, the step of each of their rows, all of them as one)
    sent        what moves carry of a tensor      (block, src, dst, step)
    attended    what attends touch of a side      (block, rank, step)
    reads       what moves and attends read of an input

All in plan order, in batches of bounded size; a node larger than that is a batch of its own.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import Literal

import numpy as np

from planner.ir import READS, TENSORS, Attend, Index, Plan

ROWS = 1 << 12  # of small attends in one
ENTRIES = 1 << 15  # blocks of small nodes in one

Columns = tuple[Index, ...]
Together = tuple[list[Attend], Index, Attend]


def attends(plan: Plan) -> Iterable[Together]:
    """All attends: some at a time, the step of each of their rows, one attend with all rows."""
    return _together(plan.attends())


def sent(plan: Plan, tensor: str) -> Iterable[Columns]:
    """(block, src, dst, step) of every block of a tensor that a move carries."""
    parts = ((move.flat(), n) for n, move in plan.moves() if tensor in move.tensors)
    return _batched(parts)


def attended(plan: Plan, side: Literal["q", "kv"]) -> Iterable[Columns]:
    """(block, rank, step) of every block of a side of every attend."""
    parts = ((attend.flat(side), n) for n, attend in plan.attends())
    return _batched(parts)


def reads(plan: Plan, tensor: str) -> Iterator[Columns]:
    """(block, rank, step) of all that is read of an input, where it is read."""
    moved = ((block, src, step) for block, src, _, step in sent(plan, tensor))
    return chain(moved, attended(plan, TENSORS[tensor].side) if tensor in READS[plan.pass_] else ())


def _together(numbered: Iterable[tuple[int, Attend]]) -> Iterator[Together]:
    for _, alike in groupby(numbered, lambda one: (one[1].q.shape[1], one[1].kv.shape[1])):
        waiting, rows = list[tuple[int, Attend]](), 0
        for number, attend in alike:
            if waiting and rows + len(attend) > ROWS:
                yield _as_one(waiting)
                waiting, rows = [], 0
            waiting.append((number, attend))
            rows += len(attend)
        yield _as_one(waiting)


def _as_one(numbered: list[tuple[int, Attend]]) -> Together:
    some = [attend for _, attend in numbered]
    return some, _steps([number for number, _ in numbered], list(map(len, some))), _joined(some)


def _steps(numbers: list[int], rows: list[int]) -> Index:
    """A step for each row."""
    if len(numbers) == 1:
        return np.broadcast_to(np.intp(numbers[0]), rows[0])
    return np.repeat(np.array(numbers, np.intp), rows)


def _joined(attends: list[Attend]) -> Attend:
    if len(attends) == 1:
        return attends[0]
    columns = ([getattr(a, name) for a in attends] for name in ("rank", "q", "kv"))
    return Attend(*map(np.concatenate, columns))


def _batched(parts: Iterable[tuple[Columns, int]]) -> Iterator[Columns]:
    waiting, entries = list[tuple[Columns, int]](), 0
    for columns, step in parts:
        if waiting and entries + len(columns[0]) > ENTRIES:
            yield _columns(waiting)
            waiting, entries = [], 0
        waiting.append((columns, step))
        entries += len(columns[0])
    if waiting:
        yield _columns(waiting)


def _columns(parts: list[tuple[Columns, int]]) -> Columns:
    numbers, rows = [n for _, n in parts], [len(columns[0]) for columns, _ in parts]
    if len(parts) == 1:
        return (*parts[0][0], _steps(numbers, rows))
    columns = zip(*(columns for columns, _ in parts), strict=True)
    return (*map(np.concatenate, columns), _steps(numbers, rows))
