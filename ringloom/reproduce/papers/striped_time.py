"""Times of ring and of striped training: matrix flop of the coarse tiles and three constants.

    T = attention + projections * rest + visit * visited tiles + masked * (attention in cut blocks)

attention    4 d flop per pair of every coarse tile that is not wholly masked, on the slowest rank
             of each round of the plan (Striped Attention, section 4: kernels skip whole tiles)
projections  time of a flop outside attention, in times of an attention flop at its own peak
visit        flop that pass while a tile is looked at, skipped or not: its loop step and its mask
masked       extra share of a tile's time in a block that the mask cuts: ring has one such block,
             striped one in every round

Which three terms to take was itself chosen by comparing candidates on the published rows, the same
three for every chip; errors of rows left out of a fit do not know of that choice.

The backward pass multiplies every term, so it leaves the ratio of the two schedules alone.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.analysis.tiles import tiles
from planner.ir import Attend, Plan
from planner.planning import plan
from planner.workload import Workload
from ringloom.reproduce.formulas.counts import critical_pairs
from ringloom.reproduce.models.transformers import Model
from ringloom.reproduce.published import DATA
from simulator.costs.kernel_tiles import kernel_tiles

Floats = NDArray[np.float64]
CONSTANTS = ("projections", "visit", "masked")
MODELS = {  # Striped Attention, table 1; its FLOP counts have two FFN matrices
    "1B": Model("1B", 2048, 5504, 22, 16, matrices=2),
    "3B": Model("3B", 3200, 8640, 26, 32, matrices=2),
    "7B": Model("7B", 4096, 11008, 32, 32, matrices=2),
}


class Mesh(NamedTuple):
    """One training run: a model on `model_parallel` x `ranks` chips over `seq` tokens."""

    model: Model
    model_parallel: int
    ranks: int
    seq: int


@dataclass(frozen=True)
class Chip:
    """Constants of one chip; the last three are fitted."""

    tile_q: int
    tile_kv: int
    slowdown: float  # of attention's matrix products against all others
    lanes: int  # head_dim is padded to a multiple
    projections: float
    visit: float
    masked: float

    @property
    def fitted(self) -> Floats:
        """The three fitted constants."""
        return np.array([getattr(self, name) for name in CONSTANTS])


def chips() -> Mapping[str, Chip]:
    """The chips of striped_time.toml by name."""
    content = tomllib.loads((DATA / "striped_time.toml").read_text(encoding="utf-8"))
    return {
        name: Chip(**{key: entry["value"] for key, entry in table.items()})
        for name, table in content.items()
    }


@lru_cache(maxsize=512)  # `ringloom reproduce striped` takes 2.5 times as long without
def planned(schedule: str, seq: int, ranks: int) -> Plan:
    """The plan of one head: every head does the same."""
    return plan(schedule, Workload(seq=seq, heads=1), ranks)


def pairs(schedule: str, mesh: Mesh) -> int:
    """Query/key pairs on the critical path, one head: the slowest rank of each round, summed."""
    return critical_pairs(planned(schedule, mesh.seq, mesh.ranks))


def rest(mesh: Mesh) -> float:
    """Forward flop per chip outside attention: projections, FFN and, once, the vocabulary."""
    model, tokens = mesh.model, -(-mesh.seq // mesh.ranks)
    per_token = 2 * (model.layers * model.layer_weights + model.vocab * model.width)
    return tokens * per_token / mesh.model_parallel


def theoretical_maximum_speedup(mesh: Mesh, slowdown: float) -> float:
    """Striped Attention's TMS: only matrix products take time, `slowdown` times in attention."""
    model = mesh.model
    per_pair = 4 * model.q_width * model.layers / mesh.model_parallel * slowdown
    ring, striped = (per_pair * pairs(name, mesh) + rest(mesh) for name in ("ring", "striped"))
    return ring / striped


class Count(NamedTuple):
    """Coarse tiles on the critical path: computed, looked at, and computed in cut blocks."""

    live: int
    visited: int
    cut: int


def coarse_tiles(schedule: str, seq: int, ranks: int, tile: tuple[int, int]) -> Count:
    """Count the tiles of the slowest rank of each round."""
    plan = planned(schedule, seq, ranks)
    live = kernel_tiles(plan.workload, plan.partition, tile)
    rounds = [_slowest(plan, attend, tile, live) for _, attend in plan.attends()]
    return Count(*(sum(column) for column in zip(*rounds, strict=True)))


def _slowest(plan: Plan, attend: Attend, tile: tuple[int, int], table: NDArray[np.int64]) -> Count:
    q, kv = attend.q[:, 0], attend.kv[:, 0]
    live = table[q, kv]
    rank = int(live.argmax())
    tall, wide = (
        int(side.sizes[block[rank]])
        for side, block in zip((plan.partition.q, plan.partition.kv), (q, kv), strict=True)
    )
    whole = tiles(plan).areas[q[rank], kv[rank]] == tall * wide
    most = int(live[rank])
    return Count(most, -(-tall // tile[0]) * -(-wide // tile[1]), 0 if whole else most)


def terms(schedule: str, mesh: Mesh, chip: Chip) -> Floats:
    """Attention flop, then what each constant multiplies, of one schedule: float64 [4]."""
    model, block = mesh.model, -(-mesh.seq // mesh.ranks)
    tile = min(chip.tile_q, block), min(chip.tile_kv, block)
    count = coarse_tiles(schedule, mesh.seq, mesh.ranks, tile)
    padded = -(-model.head_dim // chip.lanes) * chip.lanes * model.heads
    per_tile = 4 * padded * tile[0] * tile[1] * chip.slowdown / mesh.model_parallel
    each = np.array([count.live * per_tile, 0, count.visited, count.cut * per_tile])
    flop: Floats = each * model.layers + np.array([0, rest(mesh), 0, 0])
    return flop


def both(mesh: Mesh, chip: Chip) -> Floats:
    """The terms of ring and of striped: float64 [2, 4]."""
    return np.array([terms(name, mesh, chip) for name in ("ring", "striped")])


def ratio(both: Floats, constants: Floats) -> Floats:
    """Predicted ring time over striped time of terms [..., 2, 4]: float64 [...]."""
    times: Floats = both[..., 0] + both[..., 1:] @ constants
    ratios: Floats = times[..., 0] / times[..., 1]
    return ratios


def speedup(mesh: Mesh, chip: Chip) -> float:
    """Predicted end-to-end training speedup of striped over ring."""
    return float(ratio(both(mesh, chip), chip.fitted))
