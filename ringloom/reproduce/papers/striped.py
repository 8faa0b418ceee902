"""Striped Attention: every TMS, and the end-to-end speedups from three constants per chip.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.csv_rows import Record, chosen, maybe, records, whole
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Attend, Plan
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce import DATA
from ringloom.reproduce.fitting import Fit, fit
from ringloom.reproduce.formulas.counts import critical_pairs
from ringloom.reproduce.models.transformers import Model
from ringloom.reproduce.tables import Line, Table, not_compared

Floats = NDArray[np.float64]
COLUMNS = ("hardware", "model", "model_parallel", "sequence_parallel", "n_seq")
MOST_RANKS = 1024
START = np.array([1.0, 1e9, 0.1])  # of every fit: projections as fast as attention, small others
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
    per_pair = 4 * model.heads * model.head_dim * model.layers / mesh.model_parallel * slowdown
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
    rounds = [_slowest(plan, attend, tile) for _, attend in plan.attends()]
    return Count(*(sum(column) for column in zip(*rounds, strict=True)))


def _slowest(plan: Plan, attend: Attend, tile: tuple[int, int]) -> Count:
    q, kv = attend.q[:, 0].tolist(), attend.kv[:, 0].tolist()
    sides = [[chunk[0] for chunk in side.chunks] for side in (plan.partition.q, plan.partition.kv)]
    live = [_touched(sides[0][a], sides[1][b], tile) for a, b in zip(q, kv, strict=True)]
    most = max(live)
    at, to = q[live.index(most)], kv[live.index(most)]
    tall, wide = len(sides[0][at]), len(sides[1][to])
    whole = tiles(plan).areas[at, to] == tall * wide
    return Count(most, -(-tall // tile[0]) * -(-wide // tile[1]), 0 if whole else most)


def _touched(q: range, kv: range, tile: tuple[int, int]) -> int:
    """Count the tiles with a key that their last query sees, for queries and keys in order."""
    last = np.append(np.arange(q.start, q.stop, q.step)[tile[0] - 1 : -1 : tile[0]], q[-1])
    seen = np.clip((last - kv.start) // kv.step + 1, 0, len(kv))
    return int((-(-seen // tile[1])).sum())


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


# ---- published rows beside ours


@dataclass(frozen=True)
class Row:
    """One published run beside ours; None where the file gives no number."""

    hardware: str
    model: str
    model_parallel: int
    sequence_parallel: int
    n_seq: int
    tms: float
    published_tms: float | None
    predicted_speedup: float
    measured_speedup: float | None

    @property
    def mesh(self) -> Mesh:
        """The run itself."""
        return Mesh(MODELS[self.model], self.model_parallel, self.sequence_parallel, self.n_seq)

    @property
    def name(self) -> str:
        """The run in words, short."""
        where = f"{self.model_parallel}x{self.sequence_parallel}"
        return f"{self.hardware} {self.model} {where} {self.n_seq}"


def judged(path: str | Path = DATA / "striped_speedups.csv") -> list[Row]:
    """Rows of a CSV file in the form of striped_speedups.csv, published and predicted.

    `tms` and `measured_speedup` may be missing. Raises RingloomError for a row that makes no sense.
    """
    rows, known = enumerate(records(Path(path), COLUMNS), 1), chips()
    return [_row(f"{path}, row {n}", record, known) for n, record in rows]


def _row(where: str, record: Record, known: Mapping[str, Chip]) -> Row:
    hardware = chosen(where, record["hardware"], known, "hardware")
    model = chosen(where, record["model"], MODELS, "model")
    model_parallel, ranks, seq = (whole(where, record, column) for column in COLUMNS[2:])
    if ranks > MOST_RANKS:
        raise RingloomError(f"{where}: sequence_parallel is at most {MOST_RANKS}, not {ranks}")
    mesh, chip = Mesh(MODELS[model], model_parallel, ranks, seq), known[hardware]
    return Row(
        hardware,
        model,
        model_parallel,
        ranks,
        seq,
        tms=theoretical_maximum_speedup(mesh, chip.slowdown),
        published_tms=maybe(where, record, "tms"),
        predicted_speedup=speedup(mesh, chip),
        measured_speedup=maybe(where, record, "measured_speedup"),
    )


def tables(rows: Sequence[Row]) -> list[Table]:
    """TMS of all rows, then the speedups chip by chip."""
    tms = Table(
        "Striped Attention: theoretical maximum speedup (pairs counted by the plans)",
        [Line(row.name, row.published_tms, row.tms) for row in rows],
    )
    return [tms, *(_speedups(*chip) for chip in _by_chip(rows).items())]


def skipped() -> Table:
    """The share of a causal block's coarse tiles that kernels skip (Striped Attention, 2.2.1)."""
    a100, tpu = ((chips()[name].tile_q, chips()[name].tile_kv) for name in ("A100", "TPUv4"))
    lines = list[Line]()
    for what, block, tile, published in (
        ("tiles of 512", 1536, (512, 512), 33),
        ("TPU", 4096, tpu, 25),
        ("A100", 4096, a100, 0),
        ("A100", 8192, a100, None),
    ):
        count = coarse_tiles("striped", 2 * block, 2, tile)
        share = 100 * (1 - count.live / count.visited)
        lines.append(Line(f"{what}, block of {block} (%)", published, share, 0, points=True))
    note = "tiles counted in plans of 2 ranks; half of the pairs is masked"
    return Table("Striped Attention: work that is skipped", lines, note)


def left_out() -> Table:
    """Names the figure whose numbers are missing."""
    why = "a figure; its numbers are not in the text that we have"
    return not_compared("Striped Attention", [("figure 6, tokens per second", why)])


def _by_chip(rows: Sequence[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row.hardware for row in rows)
    return {name: [row for row in rows if row.hardware == name] for name in names}


def _speedups(hardware: str, rows: Sequence[Row]) -> Table:
    lines = [Line(row.name, row.measured_speedup, row.predicted_speedup) for row in rows]
    chip = chips()[hardware]
    note = (
        f"three fitted constants: projections {chip.projections:.3g} x, visit {chip.visit:.3g}"
        f" flop, masked {chip.masked:.3g} x; --fit refits them"
    )
    return Table(f"Striped Attention: end-to-end speedup on {hardware}", lines, note)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """{"rows": [...], "summary": {...}}: the summary over all rows and per hardware."""
    tms, *speedups = tables(rows)
    whole = Table("", [line for table in speedups for line in table.lines]).summary
    return {
        "rows": [asdict(row) for row in rows],
        "summary": {
            **asdict(whole),
            "tms_compared": tms.summary.compared,
            "tms_equal": tms.summary.equal,
            "hardware": {
                name: asdict(table.summary)
                for name, table in zip(_by_chip(rows), speedups, strict=True)
            },
        },
    }


def fits(rows: Sequence[Row]) -> dict[str, Fit]:
    """The three constants of each chip fitted to the measured rows, with blind errors."""
    return {name: _fit(name, own) for name, own in _by_chip(rows).items()}


def _fit(hardware: str, rows: Sequence[Row]) -> Fit:
    known = [row for row in rows if row.measured_speedup]
    if len(known) < 4:
        raise RingloomError(
            f"{hardware}: three constants need more than {len(known)} measured rows"
        )
    chip = chips()[hardware]
    parts = np.array([both(row.mesh, chip) for row in known])
    measured = np.array([row.measured_speedup for row in known], np.float64)

    def model(constants: NDArray[np.float64], at: NDArray[np.intp]) -> NDArray[np.float64]:
        return ratio(parts[at], constants)

    return fit(model, measured, START)
