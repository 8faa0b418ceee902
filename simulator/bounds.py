"""Lower bounds that no schedule can beat, on the time of a workload on some hardware.

They hold for every schedule, whatever it sends where and in which order, under these rules.

* Inputs begin at home, at the homes of this plan's partition (and where the plan's `start` says
  that copies are), and every accumulator ends at home. Blocks of this partition move whole, and
  every tile of theirs with an allowed pair is attended once, by one rank.
* An attend takes its allowed pairs at the kernels' full rate, and one launch at least. Merging
  takes no time. In a backward pass, a rank begins with its share of rowsum(dO * O).
* A message takes at least the least latency of the links and its bytes at the widest link's rate;
  all that a rank, or a node, sends or receives takes its bytes at the rate of all its ports.

compute      every pair once, evenly on all ranks by their speeds
link         pairs whose query or key is not at home have to be paid for by bytes received, and
             those by what they allow to be computed: each query row received sees all keys at the
             most, each key row received all queries at home, or the other way round. The first
             time by which all ranks together (and all nodes) could have computed everything
latency      a launch, and where some tile has two homes a message (backward: and one back)
dependency   the longest tile by itself, on whichever of its owners it ends sooner: its inputs
             come, its attend, its results go home
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import tiles
from planner.ir import ACCUMULATORS, INPUTS, TENSORS
from planner.partitions import Ints, Side
from simulator.costs.prices import Costs
from simulator.network.reach import Reach

Floats = NDArray[np.float64]
Index = NDArray[np.int64]
TILES = 1 << 16  # looked at for the longest one; fewer make the bound lower, never wrong
HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds below which no schedule can be, why, and for which group of ranks that holds.

    The group: all ranks together, each rank or each node by itself, or the owners of one tile.
    """

    seconds: float
    why: Literal["compute", "link", "latency", "dependency"]
    group: Literal["all ranks", "rank", "node", "tile"]


def lower_bounds(costs: Costs, reach: Reach, speed: Floats) -> tuple[Bounds, ...]:
    """Return the bounds of a plan's workload and partition, one for each reason.

    `speed` [ranks] are factors on the ranks' rates.
    """
    limits = Limits(costs, reach, speed)
    return limits.compute(), limits.link(), limits.latency(), limits.dependency()


def best_bound(bounds: Iterable[Bounds]) -> Bounds:
    """Return the largest, which holds as well; of equal ones the first."""
    return max(bounds, key=attrgetter("seconds"))


class Limits:
    """Derives the bounds from quantities that they have in common."""

    def __init__(self, costs: Costs, reach: Reach, speed: Floats) -> None:
        self._costs, self._reach, self._speed = costs, reach, speed
        self._plan, self._q, self._kv = costs.plan, costs.plan.partition.q, costs.plan.partition.kv
        self._tiles, self._per_pair = tiles(costs.plan), costs.kernels.seconds_per_pair
        self._rate = speed / self._per_pair  # pairs per second of each rank
        self._prologue = costs.prologue / speed
        self._pairs = float(self._tiles.total_pairs())
        self._launch = costs.kernels.launch / float(speed.max()) if self._pairs else 0.0
        self._ranks = np.arange(self._plan.ranks, dtype=np.int32)
        self._at_home = self.local(self._ranks)  # pairs of which both sides are, by rank

    def compute(self) -> Bounds:
        """Share every pair, and the prologue, evenly among all ranks; no rank beats its own one."""
        busy = self._pairs * self._per_pair + self._costs.prologue.sum()
        together = Bounds(float(busy / self._speed.sum()), "compute", "all ranks")
        alone = Bounds(float(self._prologue.max(initial=0.0)), "compute", "rank")
        return best_bound([together, alone])

    def latency(self) -> Bounds:
        """Count what is left where chips and links have infinite rates."""
        messages = 2 if self._plan.pass_ == "backward" else 1
        if self._plan.start or self._at_home.sum() == self._pairs:
            messages = 0
        return Bounds(self._launch + messages * self._reach.least_alpha, "latency", "tile")

    def local(self, group: Ints) -> Floats:
        """Count pairs with both sides at home in a group; `group` [ranks] numbers the groups."""
        members = _members(self._q, group), _members(self._kv, group)
        return np.array([self._pairs_of(q, kv) for q, kv in zip(*members, strict=True)], float)

    def _pairs_of(self, q: Ints, kv: Ints) -> int:
        """Count the pairs of many q blocks and many kv blocks by their chunks."""
        (rows, slices), (columns, others) = _counted(self._q, q), _counted(self._kv, kv)
        heads = slices @ self._tiles.shared_heads @ others.T
        return int((heads * self._tiles.areas[np.ix_(rows, columns)]).sum())

    def link(self) -> Bounds:
        """Find the first time by which all groups together could have computed everything."""
        reach, ranks = self._reach, self._ranks
        if self._plan.start or not self._pairs:
            return Bounds(0.0, "link", "rank")
        first = self._first_time(ranks, self._at_home, reach.out, reach.into)
        bound = Bounds(first, "link", "rank")
        if not 1 < len(reach.gate) < len(ranks):
            return bound
        local = self.local(reach.node)
        gates = self._first_time(reach.node, local, reach.gate, reach.gate)
        return best_bound([bound, Bounds(gates, "link", "node")])

    def _first_time(self, group: Ints, local: Floats, out: Floats, into: Floats) -> float:
        """Bisect: at `low` the groups are too slow, whatever they do."""
        rates = self._rates(group, out, into)
        low, high = 0.0, max(self.compute().seconds, 1e-12)
        while self._done(high, group, local, rates) < self._pairs:
            low, high = high, 2 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._done(middle, group, local, rates) < self._pairs:
                low = middle
            else:
                high = middle
        return low

    def _done(self, time: float, group: Ints, local: Floats, rates: Floats) -> float:
        """Bound the pairs that all groups together can have computed by then."""
        left = np.maximum(time - self._prologue, 0.0)
        own = np.bincount(group, self._rate * left)
        foreign = rates * max(0.0, time - self._reach.least_alpha)
        return float(np.minimum(own, local + foreign).sum())

    def _rates(self, group: Ints, out: Floats, into: Floats) -> Floats:
        """Bound the foreign pairs that a group may compute per second of transfer: [groups]."""
        work, heads = self._plan.workload, self._plan.workload.group
        rows, columns = (_rows(side, group) for side in (self._q, self._kv))
        least = np.full(len(rows), np.inf)
        for ports, tensors in (
            (into, INPUTS[self._plan.pass_]),
            (out, ACCUMULATORS[self._plan.pass_]),
        ):
            q, kv = (self._row_bytes(tensors, side) for side in ("q", "kv"))
            by_query = np.maximum(_over(work.kv_seq, q), _over(heads * rows, kv))
            by_key = np.maximum(_over(columns, q), _over(heads * work.seq, kv))
            per_byte = np.minimum(by_query, by_key)
            bound = np.isfinite(per_byte)
            rates = ports * np.where(bound, per_byte, 0.0)
            least = np.where(bound, np.minimum(least, rates), least)
        return least

    def _row_bytes(self, tensors: tuple[str, ...], side: str) -> int:
        """Return bytes per row and head of those tensors that belong to a side, results rounded."""
        work = self._plan.workload
        rows = [TENSORS[t] for t in tensors if TENSORS[t].side == side]
        return sum(tensor.bytes_per_token(work, finished=tensor.accumulates) for tensor in rows)

    def dependency(self) -> Bounds:
        """Find the longest tile by itself, of as many as there is time for."""
        if self._plan.start or not self._pairs:
            return Bounds(0.0, "dependency", "tile")
        kv = np.arange(min(len(self._kv), TILES), dtype=np.int32)
        sample = np.linspace(0, len(self._q) - 1, max(1, TILES // len(kv)))
        q = np.unique(sample.astype(np.int32))[:, None]
        pairs = self._tiles.pairs(q, kv[None, :])
        seconds = np.where(pairs > 0, self._travel(q, kv[None, :]), 0.0)
        calls = pairs * self._per_pair / self._speed.max()
        longest = self._launch + float((seconds + calls).max(initial=0.0))
        return Bounds(longest, "dependency", "tile")

    def _travel(self, q: Ints, kv: Ints) -> Floats:
        """Return seconds before and after the attend of each tile on the better of its owners."""
        a, b = self._q.homes[q], self._kv.homes[kv]
        ways = []
        for owner, other, side, block in ((a, b, "kv", kv), (b, a, "q", q)):
            come = self._message(INPUTS[self._plan.pass_], side, block)
            go = self._message(ACCUMULATORS[self._plan.pass_], side, block)
            alpha, wide = self._reach.alpha(other, owner), self._reach.bandwidth(other, owner)
            own = self._prologue[owner]
            arrival = np.maximum(self._prologue[other] + alpha + come / wide, own)
            back = np.where(go > 0, alpha + go / wide, 0.0)
            ways.append(np.where(owner == other, own, arrival + back))
        nearer: Floats = np.minimum(*ways)
        return nearer

    def _message(self, tensors: tuple[str, ...], side: str, block: Ints) -> Index:
        """Return bytes of each block of those tensors that belong to a side, results rounded."""
        total = np.zeros(block.shape, np.int64)
        for tensor in tensors:
            if TENSORS[tensor].side == side:
                finished = TENSORS[tensor].accumulates
                total = total + self._plan.block_bytes(tensor, finished)[block]
        return total


def _counted(side: Side, blocks: Ints) -> tuple[Index, Index]:
    """Return the blocks' chunks, and how many blocks each head slice has: [chunks, slices]."""
    chunks, place = np.unique(side.chunk[blocks], return_inverse=True)
    table = np.zeros((len(chunks), len(side.slices)), np.int64)
    np.add.at(table, (place.reshape(-1), side.slice[blocks]), 1)
    return chunks.astype(np.int64), table


def _members(side: Side, group: Ints) -> list[Ints]:
    """Return the blocks at home in each group."""
    order = np.argsort(group[side.homes], kind="stable").astype(np.int32)
    counts = np.bincount(group[side.homes], minlength=int(group.max()) + 1)
    return np.split(order, np.cumsum(counts)[:-1])


def _rows(side: Side, group: Ints) -> Floats:
    """Return the most tokens of one head at home in each group: float64 [groups]."""
    table = np.zeros((int(group.max()) + 1, len(side.slices)))
    np.add.at(table, (group[side.homes], side.slice), side.sizes)
    most: Floats = table.max(axis=1, initial=0.0)
    return most


def _over(pairs: Floats | float, size: int) -> Floats | float:
    """Return pairs per byte; a row that need not travel allows any number."""
    return pairs / size if size else np.inf * np.ones_like(pairs)
