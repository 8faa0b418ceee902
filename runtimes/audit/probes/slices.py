"""Builds questions that show the weights of slices of queries and keys.

If q or k is zero, all scores of a row are equal, and a row of the output is the average of the
values of its keys. A question has two slices of `half` columns each, keys b and queries a, and
shows four matrices:

    dimension  0 .. half - 1     half .. 2 half - 1    last
    q          indicators of a                               q k = 0 for all pairs, so scores are 0
    k                            indicators of b
    v                            indicators of b       sign of the key
    dout       indicators of a                         1

    out[i, half + b] = p[i, b]                           dv[j, a] = p[a, j]
    dq[i, half + b]  = p[i, b] (sign[b] - mean[i])       dk[j, a] = p[a, j] (sign[j] - mean[a])

dq and dk are also multiplied by the scale; mean[i] = out[i, last]. Signs alternate along the
sequence, so the mean of most rows is not close to either sign. Without gradients, all dimensions of
v are indicators.
"""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.probes.questions import Indicators, Level, Question

Numbers = NDArray[np.float64]


def ask_forward(start: int, amounts: Numbers, size: int = 1) -> Question:
    """Returns a question for a slice of keys in the output; `size`: columns per dimension."""
    return Question(v=(Indicators(start, 0, amounts, size),))


def ask_both(case: Case, queries: Indicators, keys: Indicators) -> Question:
    """Returns a question for a slice of queries and a slice of keys, in output and gradients."""
    last = case.work.v_head_dim - 1
    return Question(
        q=(queries,),
        k=(keys,),
        v=(keys, Level(signs(case.side("kv").width), last)),
        dout=(queries, Level(np.ones(case.side("q").width), last)),
    )


def half_of(work: Workload) -> int:
    """Returns the dimensions per slice of a question with a slice of queries and of keys."""
    return min(work.head_dim // 2, (work.v_head_dim - 1) // 2)


def amount(case: Case) -> float:
    """Returns the value of indicators, near the number of keys, so that results are near 1."""
    max_power = 12 if case.work.dtype == "float16" else 30
    return float(2 ** min(max_power, int(np.log2(max(1, case.work.kv_seq)))))


def signs(columns: int) -> Numbers:
    """Returns alternating signs of keys: 1, -1, 1, ..."""
    return np.where(np.arange(columns) % 2, -1.0, 1.0)


def by_column(case: Case, array: Array) -> Array:
    """Returns sums over the slots of each column: [batch, heads, columns, n]."""
    kv = case.side("kv")
    order = np.argsort(kv.columns, kind="stable")
    starts = np.searchsorted(kv.columns[order], np.arange(kv.width))
    return np.add.reduceat(array[:, :, order], starts, axis=2)
