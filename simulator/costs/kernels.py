"""Prices of kernel calls: launch + (pairs x seconds per pair + traffic x seconds per byte) x idle.

    full     ceil(rows / tq) tq x ceil(columns / tk) tk pairs: tiles are computed whole
    causal   per run of rows that is skipped together, the columns up to its last row, likewise
    window   the same, and none of the columns before its first row's first one
    masked   as full

A pair of a causal, a window or a masked call may be dearer than one of a full call. To this comes
the share of the traffic to memory, inputs and results once each, that no products hide. For a
square full call of S tokens that is TF(S) = Tmax S / (S + S_half), the curve that measurements
follow: S_half pairs take as long as what a token moves, less where query heads share KV heads. For
a causal call S_half comes out twice as large plus the width of a tile, the half-empty tiles on the
diagonal, and so it is measured.

A kernel's work comes in blocks: per head and batch row one for each tile of rows, in the backward
pass of columns. The chip runs so many at once, wave after wave, and a last wave that is not full
leaves part of it `idle`. No call takes less than the host needs to prepare it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.ir import CARRIED, TENSORS, Pass
from planner.kernel_calls import Call
from planner.workload import Workload
from simulator.hardware import Hardware

# Per (query, key) pair, head, and element of head_dim and v_head_dim: scores, dQ and dK are
# products over head_dim, out, dP and dV over v_head_dim; a backward pass repeats the scores.
FLOP = {"forward": (2.0, 2.0), "backward": (6.0, 4.0)}


def flop_per_pair(pass_: Pass, head_dim: float, v_head_dim: float) -> float:
    """Return the matrix flop of one (query, key) pair of one head."""
    return FLOP[pass_][0] * head_dim + FLOP[pass_][1] * v_head_dim


def traffic_per_token(pass_: Pass, work: Workload) -> tuple[float, float]:
    """Return the bytes per query head that a pass reads and writes for a query, and for a key."""
    tensors = [TENSORS[name] for name in CARRIED[pass_]]
    query, key = (
        sum(t.bytes_per_token(work, finished=True) for t in tensors if t.side == side)
        for side in ("q", "kv")
    )
    return query, key / work.group


@dataclass(frozen=True)
class Kernels:
    """The attention kernels of some hardware, for one pass of one workload."""

    hardware: Hardware
    work: Workload
    pass_: Pass

    @property
    def seconds_per_pair(self) -> float:
        """Seconds of one (query, key) pair of one head on long blocks, all batch rows together."""
        work = self.work
        flop = flop_per_pair(self.pass_, work.head_dim, work.v_head_dim)
        mean_dim = flop / sum(FLOP[self.pass_])  # beside the scores, whose cost has no dimension
        rate = self.hardware.peak(work.dtype) * self.hardware.efficiency(self.pass_, mean_dim)
        return flop * work.batch / rate

    @property
    def launch(self) -> float:
        """Seconds of a call that does nothing."""
        return self.hardware.launch(self.pass_)

    def blocks(self, rows: Any, columns: Any) -> Any:
        """Count the blocks per head of calls."""
        tq, tk = self.tile
        return -(-rows // tq) if self.pass_ == "forward" else -(-columns // tk)

    def traffic(self, rows: Any, columns: Any) -> Any:
        """Count the bytes per query head that calls move, inputs and results once each."""
        per_row, per_column = traffic_per_token(self.pass_, self.work)
        return per_row * rows + per_column * columns

    def total(self, counts: Any, heads: Any) -> Any:
        """Return the seconds of calls in a row; `counts`: calls, pairs, blocks, bytes per head."""
        calls, pairs, blocks, traffic = counts
        exposed = self.hardware.of_kernels("traffic", self.pass_)
        per_byte = exposed / self.hardware["memory.bandwidth"]
        work = heads * (pairs * self.seconds_per_pair + traffic * per_byte)
        if at_once := self.hardware.option("attention.blocks"):
            waves = blocks * heads * self.work.batch / np.maximum(calls, 1) / at_once
            work = work * np.ceil(waves) / np.where(waves > 0, waves, 1.0)
        host = self.hardware.of_kernels("host", self.pass_)
        return np.maximum(host * calls, self.launch * calls + work)

    @property
    def tile(self) -> tuple[int, int]:
        """Queries and keys of one kernel tile."""
        return self.hardware.tile_for(max(self.work.head_dim, self.work.v_head_dim))

    @property
    def splits(self) -> bool:
        """True if programs cut rectangles into calls; if not, kernels skip what masks hide."""
        return bool(self.hardware.option("attention.split"))

    def full(self, rows: Any, columns: Any) -> Any:
        """Count pairs per head that full calls compute, broadcast together."""
        tq, tk = self.tile
        return -(-rows // tq) * tq * (-(-columns // tk) * tk)

    def pairs(self, call: Call) -> float:
        """Count pairs per head that a call costs, in those of a full one."""
        rows, columns = len(call.rows), len(call.columns)
        whole: float = self.full(rows, columns)
        if call.band is False:
            return whole
        if call.band is None:
            return whole * self.hardware.of_kernels("masked", self.pass_)
        band = (1 - rows, 0) if call.band is True else call.band
        skips = self.hardware.skips(self.tile, self.pass_)
        inside = band_pairs((rows, columns), band, self.tile, skips)
        return inside * self.hardware.of_kernels("causal", self.pass_)

    def seconds(self, call: Call, heads: int) -> float:
        """Return the seconds of one call for some query heads, all batch rows together."""
        size = len(call.rows), len(call.columns)
        counts = 1, self.pairs(call), self.blocks(*size), self.traffic(*size)
        return float(self.total(counts, heads))


def causal_pairs(n: int, tile: tuple[int, int], skip: tuple[int, int]) -> int:
    """Count pairs that a causal call of n x n computes."""
    return band_pairs((n, n), (1 - n, 0), tile, skip)


def band_pairs(
    shape: tuple[int, int], band: tuple[int, int], tile: tuple[int, int], skip: tuple[int, int]
) -> int:
    """Count pairs that a call of rows x columns computes, row r seeing columns r + lo..r + hi.

    It goes by runs of skip[0] rows, keys in runs of skip[1]; a run of rows takes the runs of keys
    that it sees anything of. Both sides are computed in whole tiles.
    """
    (height, width), (lo, hi), (tq, tk), (sq, sk) = shape, band, tile, skip
    first = np.arange(0, height, sq)
    rows = np.minimum(height - first, sq)
    left = np.maximum(first + lo, 0) // sk * sk
    right = np.minimum(-(-np.minimum(first + sq + hi, width) // sk) * sk, width)
    keys = np.maximum(right - left, 0)
    return int((-(-rows // tq) * tq * (-(-keys // tk) * tk)).sum())
