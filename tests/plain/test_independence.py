"""Predictions do not know what was published: they could have come out otherwise.

Every published result is made three times as large. What a table predicts must stay as it was; a
number that follows from what it is compared with, as a length divided by itself does, would follow.
"""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ringloom import csv_rows
from ringloom.reproduce import DATA, validation
from ringloom.reproduce.measured import measured
from ringloom.reproduce.papers import distflash, ring, striped
from ringloom.reproduce.tables import Line

RESULTS = {  # the columns of each file that hold results, and the rows that are read
    "ring_max_context.csv": ((*ring.BASELINES.values(), "ring_k"), slice(None)),
    "dist_iteration_times.csv": (("llama_7b_s", "llama_gqa_s", "llama_33h_s"), slice(None)),
    "striped_speedups.csv": (("tms", "measured_speedup"), slice(None, None, 20)),
    "measured.csv": (("value",), slice(None, None, 20)),
}
TABLES: dict[str, Callable[[Path], list[Line]]] = {
    "ring": lambda _: [*ring.ring_contexts().lines, *ring.baseline_contexts().lines],
    "distflash": lambda _: [*distflash.times().lines],
    "striped": lambda data: [
        line
        for table in striped.tables(striped.predict_rows(data / "striped_speedups.csv"))
        for line in table.lines
    ],
    "charts": lambda data: [
        line
        for table in validation.tables(measured(data / "measured.csv"))
        for line in table.lines
        if "Order" not in table.title
    ],
}


def copied(to: Path, times: int) -> Path:
    """The data, with every result so many times as large."""
    shutil.copytree(DATA, to)
    for name, (columns, part) in RESULTS.items():
        rows = csv_rows.records(DATA / name)[part]
        for row in rows:
            row |= {column: str(times * float(row[column])) for column in columns if row[column]}
        with (to / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return to


@pytest.mark.parametrize("paper", TABLES)
def test_a_prediction_is_the_same_whatever_was_published(
    paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = list[list[Line]]()
    for times in (1, 3):
        data = copied(tmp_path / str(times), times)
        for module in (ring, distflash):
            monkeypatch.setattr(module, "DATA", data)
        both.append([line for line in TABLES[paper](data) if not line.arithmetic])
    assert len(both[0]) >= 8
    for one, other in zip(*both, strict=True):
        assert other.published == pytest.approx(3 * (one.published or 0)), one.what
        assert other.ours == pytest.approx(one.ours), one.what
