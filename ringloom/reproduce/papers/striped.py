"""Striped Attention: every TMS, and the end-to-end speedups from three constants per chip."""

from collections.abc import Sequence
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
    return [_row(f"{path}, row {n}", r) for n, r in enumerate(records(Path(path), COLUMNS), 1)]


def _row(where: str, record: Record) -> Row:
    hardware = chosen(where, record["hardware"], chips(), "hardware")
    model = chosen(where, record["model"], MODELS, "model")
    model_parallel, ranks, seq = (whole(where, record, column) for column in COLUMNS[2:])
    if ranks > MOST_RANKS:
        raise RingloomError(f"{where}: sequence_parallel is at most {MOST_RANKS}, not {ranks}")
    mesh, chip = Mesh(MODELS[model], model_parallel, ranks, seq), chips()[hardware]
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
    return [tms, *(_speedups(name, rows) for name in dict.fromkeys(r.hardware for r in rows))]


def _speedups(hardware: str, rows: Sequence[Row]) -> Table:
    here = [row for row in rows if row.hardware == hardware]
    lines = [Line(row.name, row.measured_speedup, row.predicted_speedup) for row in here]
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
    by_chip = zip(dict.fromkeys(row.hardware for row in rows), speedups, strict=True)
    return {
        "rows": [asdict(row) for row in rows],
        "summary": {
            **asdict(whole),
            "tms_compared": tms.summary.compared,
            "tms_equal": tms.summary.equal,
            "hardware": {name: asdict(table.summary) for name, table in by_chip},
        },
    }


def fits(rows: Sequence[Row]) -> dict[str, Fit]:
    """The three constants of each chip fitted to the measured rows, with blind errors."""
    fitted = {}
    for name in dict.fromkeys(row.hardware for row in rows):
        here = [row for row in rows if row.hardware == name and row.measured_speedup]
        if len(here) < 4:
            raise RingloomError(f"{name}: three constants need more than {len(here)} measured rows")
        fitted[name] = _fit(name, here)
    return fitted


def _fit(hardware: str, rows: Sequence[Row]) -> Fit:
    parts = np.array([both(row.mesh, chips()[hardware]) for row in rows])
    measured = np.array([row.measured_speedup for row in rows], np.float64)

    def model(constants: NDArray[np.float64], at: NDArray[np.intp]) -> NDArray[np.float64]:
        return ratio(parts[at], constants)

    return fit(model, measured, START)
