"""Many small nodes looked at together: a numpy call takes as long for ten rows as for a thousand.

    together    attends of the same widths as one attend, beside the attends themselves
    all_attends the same, beside the step of each row
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


def together(attends: Iterable[Attend]) -> Iterator[tuple[list[Attend], Attend]]:
    """Some attends, and one attend with the rows of all of them in turn."""
    for _, alike in groupby(attends, lambda one: (one.q.shape[1], one.kv.shape[1])):
        waiting, rows = list[Attend](), 0
        for attend in alike:
            if waiting and rows + len(attend) > ROWS:
                yield waiting, _joined(waiting)
                waiting, rows = [], 0
            waiting.append(attend)
            rows += len(attend)
        yield waiting, _joined(waiting)


def _joined(attends: list[Attend]) -> Attend:
    if len(attends) == 1:
        return attends[0]
    columns = ([getattr(a, name) for a in attends] for name in ("rank", "q", "kv"))
    return Attend(*map(np.concatenate, columns))


def all_attends(plan: Plan) -> Iterator[tuple[Index, Attend]]:
    """Every attend of a plan, many as one, and beside its rows the steps in which they are."""
    numbers = (number for number, _ in plan.attends())
    for attends, joined in together(attend for _, attend in plan.attends()):
        yield np.repeat([next(numbers) for _ in attends], [len(one) for one in attends]), joined


def sent(plan: Plan, tensor: str) -> Iterator[Columns]:
    """(block, src, dst, step) of every block of a tensor that a move carries."""
    return _batched((move.flat(), n) for n, move in plan.moves() if tensor in move.tensors)


def attended(plan: Plan, side: Literal["q", "kv"]) -> Iterator[Columns]:
    """(block, rank, step) of every block of a side of every attend."""
    return _batched((attend.flat(side), n) for n, attend in plan.attends())


def reads(plan: Plan, tensor: str) -> Iterator[Columns]:
    """(block, rank, step) of all that is read of an input, where it is read."""
    moved = ((block, src, step) for block, src, _, step in sent(plan, tensor))
    return chain(moved, attended(plan, TENSORS[tensor].side) if tensor in READS[plan.pass_] else ())


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
    if len(parts) == 1:
        columns, number = parts[0]
        return (*columns, np.broadcast_to(np.intp(number), len(columns[0])))
    sizes = [len(columns[0]) for columns, _ in parts]
    step = np.repeat(np.array([n for _, n in parts], np.intp), sizes)
    return (*map(np.concatenate, zip(*(columns for columns, _ in parts), strict=True)), step)
