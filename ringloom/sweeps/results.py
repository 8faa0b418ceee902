"""Results of a sweep as files: Parquet and CSV by pyarrow, and a summary picture."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from planner.disk import writing
from ringloom.figures import sheet
from ringloom.sweeps.picture import profiles
from ringloom.sweeps.points import Row
from ringloom.sweeps.standings import standings


def write(rows: Sequence[Row], keys: Sequence[str], folder: Path) -> Iterator[Path]:
    """Writes results.parquet, results.csv and summary.svg; yields their paths."""
    columns = table(rows)
    for name, save in (("results.parquet", parquet.write_table), ("results.csv", csv.write_csv)):
        with writing(folder / name):
            save(columns, folder / name)
        yield folder / name
    yield from sheet.write(partial(profiles, standings(rows, keys)), "summary", folder, ("svg",))


def table(rows: Sequence[Row]) -> pa.Table:
    """Returns the rows as columns: keys of the grid, numbers, and the reason of those without."""
    names = dict.fromkeys(name for row in rows for name in row if name != "reason")
    return pa.table({name: [row.get(name) for row in rows] for name in (*names, "reason")})
