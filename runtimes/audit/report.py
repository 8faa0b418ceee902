"""Defines the report of an audit: faults, matrices of multiplicities, errors and bytes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError, unknown

Matrix = NDArray[Any]
MAX_SIZE = 4096  # queries and keys of a matrix in the report; longer sequences are pooled
KINDS = {
    "off by one": "the diagonal, or the edge of the window, is one key off",
    "mask ignored": "every key is attended, regardless of the mask",
    "window ignored": "keys before the window are attended",
    "window one-sided": "one side of the window is ignored",
    "document leak": "keys of other documents are attended",
    "other alignment": "the mask is aligned at the wrong end of unequal lengths",
    "attended twice": "pairs are attended more than once",
    "block lost": "all pairs of some ranks are missing",
    "keys lost": "some allowed pairs are missing",
    "future leak": "keys behind the diagonal are attended",
    "mask leak": "masked pairs are attended",
    "another mask": "masked pairs are attended, and allowed pairs are missing",
    "stale keys": "keys or values of an earlier call are attended",
    "unmerged partials": "partial results of ranks are not weighted by their sums",
    "wrong weights": "weights are not the softmax of the scaled scores",
    "wrong scale": "scores are scaled by a wrong factor",
    "wrong GQA group": "query heads read a wrong KV head",
    "wrong batch row": "queries read the keys of another batch row",
    "padding attended": "padding is attended",
    "empty rows": "queries without allowed keys do not return zero",
    "gradient lost": "gradients of pairs are missing",
    "gradient scaled": "gradients have a wrong factor",
    "gradient leak": "masked pairs have gradients",
    "wrong gradient": "gradients disagree with the forward pass",
    "imprecise": "the error is many times that of dense attention in this dtype",
    "wrong values": "results on random inputs differ from dense attention",
    "overflow": "large scores give NaN or infinity",
    "not finite": "results are NaN or infinite",
    "wrong shape": "results have a wrong shape",
    "wrong dtype": "results have a wrong dtype",
    "changes between runs": "two runs on the same inputs differ",
    "depends on memory": "results depend on the contents of freed memory",
    "depends on calls": "results depend on other calls",
    "depends on strides": "results depend on the strides of inputs",
    "inputs changed": "the function writes to its inputs",
    "too many ranks": "messages go to ranks outside the group",
    "hang": "ranks wait for each other forever",
    "crash": "a rank raised an error or died",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, which is a key of `KINDS`, and the first wrong pair.

    `tensor` is out, dq, dk or dv. Positions, ranks and local indices are those of the first wrong
    pair, or None if the fault does not belong to a pair. `computed` and `wanted` are multiplicities
    of the pair, `pairs` is the number of wrong pairs in this batch row and head.
    """

    kind: str
    sentence: str
    pass_: str = "forward"
    tensor: str = "out"
    query: int | None = None
    key: int | None = None
    query_rank: int | None = None
    key_rank: int | None = None
    query_index: int | None = None
    key_index: int | None = None
    batch: int = 0
    head: int | None = None
    computed: float | None = None
    wanted: float | None = None
    pairs: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RingloomError(unknown("kind of fault", self.kind, KINDS))


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The multiplicities of pairs in a tensor, for one batch row and head: [queries, keys].

    `lanes`: the number of batch rows and heads with the same matrix. Multiplicities are integers if
    the weights of a row are multiples of one another. Sequences longer than `MAX_SIZE` are pooled:
    each cell is the average of its pairs.
    """

    tensor: str
    batch: int
    head: int
    lanes: int
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class Measured:
    """The error of a result on random inputs.

    `error`: the largest absolute difference from dense attention in float64. `unit`: the error of
    dense attention in the workload's dtype. `tolerance`: the allowed number of units. `factor`: the
    least-squares ratio of a head's results to dense attention. `slack`: the allowed difference of
    the factor from 1. `batch` and `head`: the lane with the worst factor.
    """

    error: float
    unit: float
    tolerance: float
    factor: float = 1.0
    slack: float = np.inf
    batch: int = 0
    head: int = 0

    @property
    def units(self) -> float:
        """The error in units."""
        return self.error / self.unit

    @property
    def close(self) -> bool:
        """True if the error is within the tolerance; False for NaN."""
        return self.units <= self.tolerance

    @property
    def exact(self) -> bool:
        """True if error and factor are within their tolerances; False for NaN."""
        return self.close and abs(self.factor - 1) <= self.slack


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The verdict of an audit.

    `wanted`: the mask, [queries, keys], pooled like the matrices in `computed`. `errors`: by
    tensor. `layout`: query positions of each rank, if they were detected. `sent`: bytes between
    ranks in a call by pass, [ranks, ranks] each, if they could be observed. `invisible`:
    descriptions of errors that probing cannot show here. `could_not_run`: why there is no verdict.
    """

    faults: tuple[Fault, ...] = ()
    wanted: Matrix | None = None
    computed: tuple[Computed, ...] = ()
    errors: dict[str, Measured] = field(default_factory=dict)
    layout: tuple[NDArray[np.int64], ...] | None = None
    sent: dict[str, Matrix] = field(default_factory=dict)
    invisible: tuple[str, ...] = ()
    could_not_run: str | None = None
    calls: int = 0
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """True if the audit ran and showed no fault."""
        return self.could_not_run is None and not self.faults

    def __repr__(self) -> str:
        if self.could_not_run is not None:
            return f"<Report: could not run: {self.could_not_run.splitlines()[0]:.200}>"
        kinds = ", ".join(dict.fromkeys(fault.kind for fault in self.faults))
        return f"<Report: {'exact' if self.exact else f'NOT exact: {kinds}'}>"


def pooled(matrix: Matrix, max_size: int = MAX_SIZE) -> Matrix:
    """Returns a matrix of at most `max_size` rows and columns, each cell an average."""
    for axis in (0, 1):
        if (size := matrix.shape[axis]) > max_size:
            starts = np.unique(np.arange(max_size) * size // max_size)
            widths = np.diff([*starts, size])
            sums = np.add.reduceat(matrix.astype(np.float32), starts, axis)
            matrix = sums / np.expand_dims(widths, 1 - axis)
    return matrix
