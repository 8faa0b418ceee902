"""Joins small attends into large ones: numpy takes as long for ten rows as for a thousand."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from planner.ir import Attend, Index, Plan

ROWS = 1 << 12  # of small attends in one: benchmarks/bench_scale.py

Together = tuple[list[Attend], Index, Attend]


def attends(plan: Plan) -> Iterator[Together]:
    """All attends: some at a time, the step of each of their rows, one attend with all rows.

    Those at a time are of the same widths and in plan order; one of more rows than that is alone.
    """
    widths = groupby(plan.attends(), lambda one: (one[1].q.shape[1], one[1].kv.shape[1]))
    for _, alike in widths:
        waiting, rows = list[tuple[int, Attend]](), 0
        for number, attend in alike:
            if waiting and rows + len(attend) > ROWS:
                yield _as_one(waiting)
                waiting, rows = [], 0
            waiting.append((number, attend))
            rows += len(attend)
        yield _as_one(waiting)


def _as_one(numbered: list[tuple[int, Attend]]) -> Together:
    numbers, attends = zip(*numbered, strict=True)
    steps = np.repeat(np.array(numbers, np.intp), [*map(len, attends)])
    if len(attends) == 1:
        return list(attends), steps, attends[0]
    columns = ([getattr(a, name) for a in attends] for name in ("rank", "q", "kv"))
    return list(attends), steps, Attend(*map(np.concatenate, columns))
