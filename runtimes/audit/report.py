"""Defines the report of an audit: faults, matrices of multiplicities, errors and bytes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError, unknown

Matrix = NDArray[Any]
LARGEST = 4096  # queries and keys of a matrix in the report; longer sequences are pooled
KINDS = {
    "off by one": "the diagonal, or the edge of the window, is one key off",
    "mask ignored": "every key is attended, whatever the mask says",
    "window ignored": "keys before the window are attended",
    "window one-sided": "one side of the window is not kept",
    "document leak": "keys of other documents are attended",
    "other alignment": "the mask counts from another end where lengths differ",
    "attended twice": "pairs are attended more often than once",
    "block lost": "pairs of whole ranks are not attended",
    "keys lost": "pairs that the mask allows are not attended",
    "future leak": "keys behind the diagonal are attended",
    "mask leak": "pairs that the mask forbids are attended",
    "another mask": "pairs are attended that the mask forbids, and others are not",
    "stale keys": "keys and values of an earlier call are attended",
    "unmerged partials": "partial results of ranks are not weighed by their sums",
    "wrong weights": "weights are not the softmax of the scaled scores",
    "wrong scale": "scores are scaled by another factor",
    "wrong GQA group": "query heads read the keys of another head",
    "wrong batch row": "queries read the keys of another batch row",
    "padding attended": "keys that hold no token are attended",
    "empty rows": "queries that see no key do not return zero",
    "gradient lost": "gradients of pairs are missing",
    "gradient scaled": "gradients are a multiple of what they should be",
    "gradient leak": "gradients flow between pairs that the mask forbids",
    "wrong gradient": "gradients disagree with the forward pass",
    "imprecise": "the error is many times that of dense attention in this dtype",
    "wrong values": "results on random inputs differ from dense attention",
    "overflow": "large scores give NaN or infinity",
    "not finite": "results are NaN or infinite",
    "wrong shape": "results have another shape",
    "wrong dtype": "results have another dtype",
    "changes between runs": "two runs on the same inputs differ",
    "depends on memory": "results depend on what freed memory held",
    "depends on calls": "results depend on the calls before",
    "depends on strides": "results depend on how inputs lie in memory",
    "inputs changed": "the function writes into the tensors that it is given",
    "too many ranks": "messages leave the stated ranks",
    "hang": "ranks wait for each other for ever",
    "crash": "a rank raised an error or ended",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, a key of `KINDS`, and where it shows first.

    `tensor` is out, dq, dk or dv. Positions, ranks and local indices are those of the first wrong
    pair, or None if no single pair has the fault; `computed` and `wanted` are its multiplicities,
    and `pairs` is the number of wrong pairs in this batch row and head.
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
    """Multiplicities that a tensor showed in one batch row and head: [queries, keys].

    `lanes` counts the batch rows and heads with the same matrix. Numbers are integers if the
    weights of a row are multiples of one another. Sequences longer than `LARGEST` are pooled: each
    cell is the average of its pairs.
    """

    tensor: str
    batch: int
    head: int
    lanes: int
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class Measured:
    """The error of a result on random inputs.

    `error`: the largest absolute difference from dense attention in float64. `unit`: the same for
    dense attention in the workload's dtype. `tolerance`: the allowed number of units. `factor`: the
    ratio of the numbers of one head to those of dense attention, by least squares; `slack`: its
    allowed difference from 1. `batch` and `head` are those with the worst factor.
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
        """True within the tolerance; never for NaN."""
        return self.units <= self.tolerance

    @property
    def exact(self) -> bool:
        """True within the tolerance and without a factor; never for NaN."""
        return self.close and abs(self.factor - 1) <= self.slack


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The verdict of an audit.

    `wanted`: the mask, [queries, keys], pooled like the matrices in `computed`. `errors`: by name.
    `layout`: query positions of each rank, if they were detected. `sent`: bytes between ranks in a
    call by pass, [ranks, ranks] each, if they could be observed. `invisible`: sentences on what
    probing cannot show here. `could_not_run`: why there is no verdict.
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


def pooled(matrix: Matrix, largest: int = LARGEST) -> Matrix:
    """Returns a matrix of at most `largest` rows and columns, by averages of equal cells."""
    for axis in (0, 1):
        if (size := matrix.shape[axis]) > largest:
            starts = np.unique(np.arange(largest) * size // largest)
            widths = np.diff([*starts, size])
            sums = np.add.reduceat(matrix.astype(np.float32), starts, axis)
            matrix = sums / np.expand_dims(widths, 1 - axis)
    return matrix
