"""Striped Attention: theoretical maximum speedups, and end-to-end speedups from a time model.

    T = attention + projections * other + visit * visited tiles + masked * attention in cut blocks

attention    flop of the coarse tiles with an allowed pair, 4 d per pair of a tile, for the slowest
             rank of each round (Striped Attention, section 4: kernels skip masked tiles)
other        flop outside attention
projections  time of such a flop, relative to an attention flop at its own peak
visit        time [flop] of a visited tile's loop step and mask, also if the tile is skipped
masked       extra share of a tile's time in a block that the mask cuts: ring has one such block,
             striped has one in every round

The last three are fitted for each chip. The form of the model was chosen by comparing candidates on
the same published rows, so the errors on held-out rows do not include that choice.

The backward pass scales all terms alike, so it does not change the ratio of the two schedules.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.csv_rows import Record, check_choice, optional_number, positive_integer, records
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
START = np.array([1.0, 1e9, 0.1])  # initial values of `CONSTANTS` in every fit
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
    """The constants of one chip; the last three are fitted."""

    tile_q: int
    tile_kv: int
    slowdown: float  # time of an attention flop, relative to other matrix products
    lanes: int  # head_dim is padded to a multiple of this
    projections: float
    visit: float
    masked: float

    @property
    def fitted(self) -> Floats:
        """Returns the three fitted constants."""
        return np.array([getattr(self, name) for name in CONSTANTS])


def chips() -> Mapping[str, Chip]:
    """Returns the chips of striped_time.toml by name."""
    content = tomllib.loads((DATA / "striped_time.toml").read_text(encoding="utf-8"))
    return {
        name: Chip(**{key: entry["value"] for key, entry in table.items()})
        for name, table in content.items()
    }


@lru_cache(maxsize=512)  # `ringloom reproduce striped` takes 2.5 times as long without this cache
def one_head_plan(schedule: str, seq: int, ranks: int) -> Plan:
    """Returns the plan of one head, which stands for all heads."""
    return plan(schedule, Workload(seq=seq, heads=1), ranks)


def pairs(schedule: str, mesh: Mesh) -> int:
    """Returns the query-key pairs of one head: those of the slowest rank, summed over rounds."""
    return critical_pairs(one_head_plan(schedule, mesh.seq, mesh.ranks))


def other_flop(mesh: Mesh) -> float:
    """Returns the forward flop per chip outside attention: projections, FFN, output logits."""
    model, tokens = mesh.model, -(-mesh.seq // mesh.ranks)
    per_token = 2 * (model.layers * model.layer_weights + model.vocab * model.width)
    return tokens * per_token / mesh.model_parallel


def theoretical_maximum_speedup(mesh: Mesh, slowdown: float) -> float:
    """Returns the TMS of Striped Attention, which counts only the time of matrix products.

    `slowdown`: time of an attention flop, relative to other matrix products.
    """
    model = mesh.model
    per_pair = 4 * model.heads * model.head_dim * model.layers / mesh.model_parallel * slowdown
    ring, striped = (
        per_pair * pairs(name, mesh) + other_flop(mesh) for name in ("ring", "striped")
    )
    return ring / striped


class Count(NamedTuple):
    """Coarse tiles on the critical path: computed, visited, and computed in cut blocks."""

    live: int
    visited: int
    cut: int


def coarse_tiles(schedule: str, seq: int, ranks: int, tile: tuple[int, int]) -> Count:
    """Counts the tiles of the slowest rank of each round."""
    plan = one_head_plan(schedule, seq, ranks)
    rounds = [_count_round(plan, attend, tile) for _, attend in plan.attends()]
    return Count(*(sum(column) for column in zip(*rounds, strict=True)))


def _count_round(plan: Plan, attend: Attend, tile: tuple[int, int]) -> Count:
    q, kv = attend.q[:, 0].tolist(), attend.kv[:, 0].tolist()
    queries, keys = (
        [chunk[0] for chunk in side.chunks] for side in (plan.partition.q, plan.partition.kv)
    )
    live = [_count_live(queries[i], keys[j], tile) for i, j in zip(q, kv, strict=True)]
    most = max(live)
    i, j = q[live.index(most)], kv[live.index(most)]
    height, width = len(queries[i]), len(keys[j])
    full = tiles(plan).areas[i, j] == height * width
    return Count(most, -(-height // tile[0]) * -(-width // tile[1]), 0 if full else most)


def _count_live(q: range, kv: range, tile: tuple[int, int]) -> int:
    """Counts the causal tiles with an allowed pair: those whose last query sees a key."""
    last = np.append(np.arange(q.start, q.stop, q.step)[tile[0] - 1 : -1 : tile[0]], q[-1])
    visible = np.clip((last - kv.start) // kv.step + 1, 0, len(kv))
    return int((-(-visible // tile[1])).sum())


def terms(schedule: str, mesh: Mesh, chip: Chip) -> Floats:
    """Returns attention flop, then the factor of each constant, of one schedule: float64 [4]."""
    model, block = mesh.model, -(-mesh.seq // mesh.ranks)
    tile = min(chip.tile_q, block), min(chip.tile_kv, block)
    count = coarse_tiles(schedule, mesh.seq, mesh.ranks, tile)
    padded = -(-model.head_dim // chip.lanes) * chip.lanes * model.heads
    per_tile = 4 * padded * tile[0] * tile[1] * chip.slowdown / mesh.model_parallel
    per_layer = np.array([count.live * per_tile, 0, count.visited, count.cut * per_tile])
    flop: Floats = per_layer * model.layers + np.array([0, other_flop(mesh), 0, 0])
    return flop


def both_terms(mesh: Mesh, chip: Chip) -> Floats:
    """Returns the terms of ring and of striped: float64 [2, 4]."""
    return np.array([terms(name, mesh, chip) for name in ("ring", "striped")])


def ratio(terms: Floats, constants: Floats) -> Floats:
    """Returns the predicted time of ring over that of striped, for terms [..., 2, 4]."""
    times: Floats = terms[..., 0] + terms[..., 1:] @ constants
    ratios: Floats = times[..., 0] / times[..., 1]
    return ratios


def speedup(mesh: Mesh, chip: Chip) -> float:
    """Returns the predicted end-to-end training speedup of striped over ring."""
    return float(ratio(both_terms(mesh, chip), chip.fitted))


# ---- published rows and predictions


@dataclass(frozen=True)
class Row:
    """A published run and its prediction; None where the file has no number."""

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
        """Returns the training run."""
        return Mesh(MODELS[self.model], self.model_parallel, self.sequence_parallel, self.n_seq)

    @property
    def name(self) -> str:
        """Returns a short name of the run."""
        shape = f"{self.model_parallel}x{self.sequence_parallel}"
        return f"{self.hardware} {self.model} {shape} {self.n_seq}"


def predict_rows(path: str | Path = DATA / "striped_speedups.csv") -> list[Row]:
    """Reads a CSV file in the format of striped_speedups.csv, and predicts each row.

    `tms` and `measured_speedup` may be missing. Raises RingloomError for an invalid row.
    """
    rows, by_name = enumerate(records(Path(path), COLUMNS), 1), chips()
    return [_predict_row(f"{path}, row {n}", record, by_name) for n, record in rows]


def _predict_row(where: str, record: Record, by_name: Mapping[str, Chip]) -> Row:
    hardware = check_choice(where, record["hardware"], by_name, "hardware")
    model = check_choice(where, record["model"], MODELS, "model")
    model_parallel, ranks, seq = (positive_integer(where, record, column) for column in COLUMNS[2:])
    if ranks > MOST_RANKS:
        raise RingloomError(f"{where}: sequence_parallel must be at most {MOST_RANKS}, not {ranks}")
    mesh, chip = Mesh(MODELS[model], model_parallel, ranks, seq), by_name[hardware]
    return Row(
        hardware,
        model,
        model_parallel,
        ranks,
        seq,
        tms=theoretical_maximum_speedup(mesh, chip.slowdown),
        published_tms=optional_number(where, record, "tms"),
        predicted_speedup=speedup(mesh, chip),
        measured_speedup=optional_number(where, record, "measured_speedup"),
    )


def tables(rows: Sequence[Row]) -> list[Table]:
    """Returns the TMS of all rows, then a table of speedups per chip."""
    tms = Table(
        "Striped Attention: theoretical maximum speedup (pairs counted in plans)",
        [Line(row.name, row.published_tms, row.tms) for row in rows],
    )
    return [tms, *(_speedups(*chip) for chip in _by_chip(rows).items())]


def skipped_tiles() -> Table:
    """Returns the share of a causal block's tiles that kernels skip (Striped Attention, 2.2.1)."""
    a100, tpu = ((chips()[name].tile_q, chips()[name].tile_kv) for name in ("A100", "TPUv4"))
    lines = list[Line]()
    for name, block, tile, published in (
        ("tiles of 512", 1536, (512, 512), 33),
        ("TPU", 4096, tpu, 25),
        ("A100", 4096, a100, 0),
        ("A100", 8192, a100, None),
    ):
        count = coarse_tiles("striped", 2 * block, 2, tile)
        share = 100 * (1 - count.live / count.visited)
        lines.append(Line(f"{name}, block of {block} (%)", published, share, 0, points=True))
    note = "tiles counted in plans of 2 ranks; the mask hides half of the pairs"
    return Table("Striped Attention: skipped tiles", lines, note)


def missing_results() -> Table:
    """Returns the results of the paper without published numbers."""
    reason = "a figure; its numbers are not in our copy of the text"
    return not_compared("Striped Attention", [("figure 6, tokens per second", reason)])


def _by_chip(rows: Sequence[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row.hardware for row in rows)
    return {name: [row for row in rows if row.hardware == name] for name in names}


def _speedups(hardware: str, rows: Sequence[Row]) -> Table:
    lines = [Line(row.name, row.measured_speedup, row.predicted_speedup) for row in rows]
    chip = chips()[hardware]
    note = (
        f"three fitted constants: projections {chip.projections:.3g}x, visit {chip.visit:.3g}"
        f" flop, masked {chip.masked:.3g}x; --fit refits them"
    )
    return Table(f"Striped Attention: end-to-end speedup on {hardware}", lines, note)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns {"rows": [...], "summary": {...}}; the summary covers all rows and each chip."""
    tms, *speedups = tables(rows)
    overall = Table("", [line for table in speedups for line in table.lines]).summary
    return {
        "rows": [asdict(row) for row in rows],
        "summary": {
            **asdict(overall),
            "tms_compared": tms.summary.compared,
            "tms_equal": tms.summary.equal,
            "hardware": {
                name: asdict(table.summary)
                for name, table in zip(_by_chip(rows), speedups, strict=True)
            },
        },
    }


def fit_chips(rows: Sequence[Row]) -> dict[str, Fit]:
    """Fits the three constants of each chip to its measured rows."""
    return {name: _fit_chip(name, runs) for name, runs in _by_chip(rows).items()}


def _fit_chip(hardware: str, rows: Sequence[Row]) -> Fit:
    runs = [row for row in rows if row.measured_speedup]
    if len(runs) < 4:
        raise RingloomError(
            f"{hardware}: fitting three constants needs at least 4 measured rows, not {len(runs)}"
        )
    chip = chips()[hardware]
    both = np.array([both_terms(row.mesh, chip) for row in runs])
    measured = np.array([row.measured_speedup for row in runs], np.float64)

    def model(constants: Floats, selected: NDArray[np.intp]) -> Floats:
        return ratio(both[selected], constants)

    return fit(model, measured, START)
