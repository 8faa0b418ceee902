"""Stores the weights of rows, and counts multiplicities: integers in the ratio of the weights.

    weights [0.25, 0.5, 0, 0.25]  -->  multiplicities [1, 2, 0, 1]

Multiplicities are known up to a common factor of their row, which outputs do not show.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringloom.runtimes.arrays import Array

MAX_STORED = 4  # matrices of lanes that differ from the first lane
ZERO = 1e-3  # share of a fair weight below which a weight counts as 0
ROUGH = "bfloat16", "float16"
CLUSTER = 1.5  # weights up to this multiple of the smallest weight have the same multiplicity


class Lanes:
    """The weights of every lane (a batch row and a head): float32 [rows, columns].

    All lanes start with the weights of `first`, and lanes with equal weights share its matrix. Of
    lanes that differ, only the first few are stored. `lanes`: numbers of batch rows and heads.
    """

    def __init__(self, first: Array, lanes: tuple[int, int], dtype: str) -> None:
        self.close = tolerance_of(dtype) / (3 if dtype in ROUGH else 20)
        self.first, self.lanes = first, lanes
        self.others: dict[tuple[int, int], Array] = {}
        self.lost = set[tuple[int, int]]()  # lanes that differ and are not stored

    def put_columns(self, start: int, block: Array) -> None:
        """Stores weights of the columns from `start` on: [batch, heads, rows, n]."""
        self._put((slice(None), slice(start, start + block.shape[3])), block)

    def put_rows(self, rows: Array, block: Array) -> None:
        """Stores weights of these rows: [batch, heads, n, columns]."""
        self._put((rows, slice(None)), block)

    def _put(self, index: Any, block: Array) -> None:
        base = block[0, 0]
        for lane in np.ndindex(*block.shape[:2]):
            if lane in self.others:
                self.others[lane][index] = block[lane]
            elif lane != (0, 0) and lane not in self.lost and not self._is_close(base, block[lane]):
                if len(self.others) < MAX_STORED:
                    self.others[lane] = self.first.copy()
                    self.others[lane][index] = block[lane]
                else:
                    self.lost.add(lane)
        self.first[index] = base

    def _is_close(self, a: Array, b: Array) -> bool:
        """Returns True if weights differ only by rounding."""
        rounding = np.maximum(np.abs(a), np.abs(b)) * self.close
        return bool(np.all(np.abs(a - b) <= rounding + ZERO / self.first.shape[1]))

    def items(self) -> list[tuple[tuple[int, int], int, Array]]:
        """Returns (first lane, number of equal lanes, weights) of each stored matrix."""
        total = self.lanes[0] * self.lanes[1] - len(self.others) - len(self.lost)
        return [((0, 0), total, self.first), *((lane, 1, x) for lane, x in self.others.items())]


@dataclass(frozen=True, slots=True)
class Counts:
    """The multiplicities of rows: int32 [rows, columns].

    `uneven`: rows whose weights are not multiples of one another. `total`: the sum of each row's
    weights, 1 if all weights are known. Both are [rows].
    """

    times: Array
    uneven: Array
    total: Array


def count(weights: Array, tolerance: float) -> Counts:
    """Counts multiplicities; `tolerance`: relative error of a weight. NaN counts as 0."""
    weights = np.nan_to_num(weights, nan=0.0, posinf=0.0, neginf=0.0)
    nonzero = weights > ZERO / weights.shape[1]
    smallest = np.where(nonzero, weights, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    lowest = nonzero & (weights <= CLUSTER * smallest)
    lowest_count = lowest.sum(axis=1, keepdims=True)
    unit = np.where(lowest, weights, 0).sum(axis=1, keepdims=True) / np.maximum(lowest_count, 1)
    ratio = np.divide(weights, unit, out=np.zeros_like(weights), where=nonzero)
    times = np.rint(np.minimum(ratio, 2**30)).astype(np.int32)
    uneven = np.abs(ratio - times) > tolerance * np.maximum(times, 1)
    return Counts(times, (uneven & nonzero).any(axis=1), weights.sum(axis=1, dtype=np.float64))


def tolerance_of(dtype: str) -> float:
    """Returns the largest relative error of a weight that counts as rounding in a dtype."""
    return 0.06 if dtype in ROUGH else 0.02
