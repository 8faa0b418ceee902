"""Prices of kernel calls: launch + (pairs x seconds per pair + traffic x seconds per byte) x idle.

full     ceil(rows / tq) tq x ceil(columns / tk) tk pairs: tiles are computed whole
causal   for each run of rows that skip tiles together, as full with the columns up to the last row;
         late queries are one causal call if kernels align masks at the last row
window   as causal, without the columns before the first one that the first row of a run sees
masked   as full, plus the mask, which is made once for all heads and batch entries; windows are
         masked if making a mask has a price, because such kernels do not support windows

A pair of a causal or a window call may cost more than a pair of a full call. Pairs before the
diagonal of late queries do not, because kernels mask only the tiles on the diagonal. Memory traffic
(inputs and results, once each) counts as far as matrix products do not hide it. A square full call
of S tokens has the rate TF(S) = Tmax S / (S + S_half), as measured: S_half pairs take as long as
the memory traffic of a token; S_half is smaller if query heads share KV heads. For a causal call,
measured S_half is twice as large, plus the width of a tile, for half-empty tiles on the diagonal.

The work of a kernel consists of blocks: for each head and batch entry, one per tile of rows, or of
columns in the backward pass. The chip runs blocks in waves, and a last wave that is not full leaves
part of the chip `idle`. A call takes at least the time of its memory traffic and the time in which
the host prepares it.

Few queries. Kernels may have a shorter tile for calls with fewer rows than a tile. If the blocks of
a call do not fill the chip, 16-bit forward kernels on GPUs split its keys, down to single tiles.
For one query, they compute the heads of a KV head as rows of one tile. PyTorch's flash operator
does both (`num_splits_heuristic` and `mha_fwd` in FlashAttention's flash_api.cpp); merging the
results of the splits is not priced. The operator splits below 0.8 of a wave of 64-row tiles with
two tiles per SM, which is 0.8 of our waves for long calls and 1.6 for short ones; we use 1. Without
a split, its tile has 128 rows again; we keep the short tile, which is closer to published times of
one query in large batches (0.96 to 1.19 of them, against 1.27 to 1.60).
"""

from typing import Any

import numpy as np

from ringloom.planner.ir import CARRIED, TENSORS, Pass
from ringloom.planner.kernel_calls import Call, Takes
from ringloom.planner.workload import DTYPES, Workload
from ringloom.simulator.hardware import Hardware

# Flop of a (query, key) pair of one head, per element of head_dim and of v_head_dim: scores, dQ and
# dK are products over head_dim; out, dP and dV over v_head_dim. A backward pass repeats the scores.
FLOP = {"forward": (2.0, 2.0), "backward": (6.0, 4.0)}
EXACT = 1 - 1e-12  # factor on a sum that rounding may have raised above a whole number


def flop_per_pair(pass_: Pass, head_dim: float, v_head_dim: float) -> float:
    """Returns the matrix flop of one (query, key) pair of one head."""
    return FLOP[pass_][0] * head_dim + FLOP[pass_][1] * v_head_dim


def traffic_per_token(pass_: Pass, work: Workload) -> tuple[float, float]:
    """Returns the bytes per query head that a pass reads and writes for a query, and for a key."""
    tensors = [TENSORS[name] for name in CARRIED[pass_]]
    query, key = (
        sum(t.bytes_per_token(work, finished=True) for t in tensors if t.side == side)
        for side in ("q", "kv")
    )
    return query, key / work.group


class Kernels:
    """The attention kernels of some hardware, for one pass of one workload."""

    def __init__(self, hardware: Hardware, work: Workload, pass_: Pass) -> None:
        self._work, self._pass = work, pass_
        flop = flop_per_pair(pass_, work.head_dim, work.v_head_dim)
        mean_dim = flop / sum(FLOP[pass_])  # apart from scores, whose cost does not depend on it
        rate = hardware.peak(work.dtype) * hardware.efficiency(pass_, mean_dim)
        # Of one (query, key) pair of one head on long blocks, for the whole batch.
        self.seconds_per_pair = flop * work.batch / rate
        self._exposed = hardware.option("attention.traffic", pass_)
        self._bandwidth = hardware["memory.bandwidth"]
        self.launch, self.host = (
            hardware.option(f"attention.{n}", pass_) for n in ("launch", "host")
        )
        # Making the mask of one (query, key) pair, in units of a pair of one head.
        self._mask = hardware.option("attention.mask", pass_) / self.seconds_per_pair
        narrow = DTYPES[work.dtype] == 2  # 16-bit kernels, unless they take a mask
        from_end = bool(hardware.option("attention.bottom_right"))
        self.takes = Takes(narrow and not self._mask, narrow and from_end)
        self._causal = hardware.option("attention.causal", pass_)
        self._concurrent = hardware.option("attention.blocks")
        self._per_row, self._per_column = traffic_per_token(pass_, work)
        self.tile = hardware.tile_for(max(work.head_dim, work.v_head_dim))  # queries, keys
        self._skips = hardware.skips(self.tile, pass_)
        self._short = int(hardware.option("attention.short_tile_q")) or self.tile[0]
        self._flash = bool(self._concurrent) and pass_ == "forward" and DTYPES[work.dtype] == 2

    @property
    def form(self) -> tuple[object, ...]:
        """All values besides the workload on which the counts of calls depend."""
        tiles = self.tile, self._short, self._flash
        return *tiles, self._skips, self.takes, self._mask, self._causal

    def blocks(self, rows: Any, columns: Any, heads: Any) -> Any:
        """Returns the number of kernel blocks per head of calls."""
        tq, tk = self.tile
        if self._pass == "backward":
            return -(-columns // tk)
        packed = self._packed(rows, heads)
        return -(-rows * packed // tq) / packed

    def traffic(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Returns the bytes per query head of rows and of columns, each read and written once."""
        return self._per_row * rows, self._per_column * columns

    def total(self, counts: Any, heads: Any) -> Any:
        """Returns the seconds of calls in turn; `counts`: calls, pairs, blocks, traffic per head.

        Query heads read all of their KV heads, even if other query heads use the same KV head.
        """
        calls, pairs, blocks, queries, keys = counts
        shared = self._kv_heads(heads) * self._work.group
        moved = (heads * queries + shared * keys) / self._bandwidth
        work = heads * pairs * self.seconds_per_pair + self._exposed * moved
        if self._concurrent:
            heads_per_call = heads * self._work.batch / np.maximum(calls, 1)
            running = blocks * heads_per_call
            if self._flash:
                tiles = pairs * heads_per_call / (self.tile[0] * self.tile[1])
                running = np.maximum(running, np.minimum(tiles, self._concurrent))
            waves = running / self._concurrent
            work = work * np.ceil(waves * EXACT) / np.where(waves > 0, waves, 1.0)
        return np.maximum(self.host * calls, self.launch * calls + np.maximum(work, moved))

    def _kv_heads(self, heads: Any) -> Any:
        """Returns the number of KV heads of query heads."""
        return -(-heads // self._work.group)

    def _packed(self, rows: Any, heads: Any) -> Any:
        """Returns the number of heads whose rows share a tile."""
        return np.where(self._flash & (rows == 1), heads / self._kv_heads(heads), 1)

    def height(self, rows: Any, heads: Any) -> Any:
        """Returns the rows per head that calls compute, in whole tiles."""
        tq, short, packed = self.tile[0], self._short, self._packed(rows, heads)
        few = np.minimum(-(-rows * packed // short) * short / packed, tq)
        return np.where(rows < tq, few, -(-rows // tq) * tq)

    def full(self, rows: Any, columns: Any, heads: Any) -> Any:
        """Returns the pairs per head that full calls compute; arguments are broadcast."""
        tk = self.tile[1]
        return self.height(rows, heads) * (-(-columns // tk) * tk)

    def pairs(self, call: Call, heads: int) -> float:
        """Returns the cost per head of a call, in pairs of a full call."""
        rows, columns = len(call.rows), len(call.columns)
        if call.band is False:
            return float(self.full(rows, columns, heads))
        if call.band is None or (self._mask and call.band is not True):
            return float(self.full(rows, columns, heads)) * (1 + self._mask / max(heads, 1))
        tile = min(float(self.height(rows, heads)), self.tile[0]), self.tile[1]
        if call.band is True:
            late = band_pairs((rows, columns), (1 - rows, columns - rows), tile, self._skips)
            return late + causal_pairs(rows, tile, self._skips) * (self._causal - 1)
        return band_pairs((rows, columns), call.band, tile, self._skips) * self._causal

    def seconds(self, call: Call, heads: int) -> float:
        """Returns the seconds of one call for `heads` query heads and the whole batch."""
        size = len(call.rows), len(call.columns)
        pairs, blocks = self.pairs(call, heads), self.blocks(*size, heads)
        return float(self.total((1, pairs, blocks, *self.traffic(*size)), heads))


def causal_pairs(n: int, tile: tuple[float, int], skip: tuple[int, int]) -> float:
    """Returns the number of pairs that a causal call of n x n computes."""
    return band_pairs((n, n), (1 - n, 0), tile, skip)


def band_pairs(
    shape: tuple[int, int], band: tuple[int, int], tile: tuple[float, int], skip: tuple[int, int]
) -> float:
    """Returns the number of pairs that a call computes if row r sees columns r + lo..r + hi.

    Rows have runs of skip[0], columns of skip[1]; a run of rows needs every run of columns of which
    it sees any column. Both sides are computed in whole tiles.
    """
    (height, width), (lo, hi), (tq, tk), (sq, sk) = shape, band, tile, skip
    first = np.arange(0, height, sq)
    rows = np.minimum(height - first, sq)
    left = np.maximum(first + lo, 0) // sk * sk
    right = np.minimum(-(-np.minimum(first + sq + hi, width) // sk) * sk, width)
    keys = np.maximum(right - left, 0)
    return float((-(-rows // tq) * tq * (-(-keys // tk) * tk)).sum())
