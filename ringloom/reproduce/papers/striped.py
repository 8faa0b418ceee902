"""Striped Attention: every TMS, and the end-to-end speedups from three constants per chip."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import RingloomError
from ringloom.csv_rows import Record, records
from ringloom.reproduce.fitting import Fit, fit
from ringloom.reproduce.papers.striped_time import (
    MODELS,
    Chip,
    Mesh,
    both,
    chips,
    ratio,
    speedup,
    theoretical_maximum_speedup,
)
from ringloom.reproduce.published import DATA, chosen, maybe, whole
from ringloom.reproduce.tables import Line, Table

COLUMNS = ("hardware", "model", "model_parallel", "sequence_parallel", "n_seq")
MOST_RANKS = 1024
START = np.array([1.0, 1e9, 0.1])  # of every fit: projections as fast as attention, small others


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
