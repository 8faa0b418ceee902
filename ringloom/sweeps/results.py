"""Writes the results of a sweep as Parquet, CSV and performance profiles.

A profile shows how often a schedule is within a factor of the fastest schedule. The height of a
curve at 1 is the fraction of cells in which the schedule is the fastest; a curve stays below 1 if
the schedule cannot run in all cells (Dolan and Moré, 2002).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path

import pyarrow as pa
from matplotlib.figure import Figure
from pyarrow import csv, parquet

from ringloom.csv_rows import safe_cell
from ringloom.figures import sheet
from ringloom.planner import disk
from ringloom.report.pictures.palette import OKABE_ITO
from ringloom.sweeps.grid import Row
from ringloom.sweeps.run import Standing, standings

MAX_COLUMNS = 3  # panels in a row
MAX_FACTOR = 8.0
STYLES = ("-", "--", ":", "-.")


def write(rows: Sequence[Row], keys: Sequence[str], folder: Path) -> Iterator[Path]:
    """Writes results.parquet, results.csv and summary.svg; yields their paths."""
    safe_rows = [{key: safe_cell(value) for key, value in row.items()} for row in rows]
    for name, save, saved_rows in (
        ("results.parquet", parquet.write_table, rows),
        ("results.csv", csv.write_csv, safe_rows),
    ):
        save(table(saved_rows), file := BytesIO())
        disk.write(folder / name, file.getvalue())
        yield folder / name
    yield from sheet.write(partial(profiles, standings(rows, keys)), "summary", folder, ("svg",))


def table(rows: Sequence[Row]) -> pa.Table:
    """Returns a table of the keys of the grid, the numbers, and the reasons of refusals."""
    names = dict.fromkeys(name for row in rows for name in row if name != "reason")
    return pa.table({name: [row.get(name) for row in rows] for name in (*names, "reason")})


def profiles(standings: Sequence[Standing]) -> Figure:
    """Draws a panel per machine with a curve per schedule."""
    machines = list(dict.fromkeys(standing.hardware for standing in standings))
    schedules = list(dict.fromkeys(standing.schedule for standing in standings))
    columns = min(MAX_COLUMNS, len(machines))
    lines = -(-len(machines) // columns)
    figure = Figure(figsize=(2.4 * columns + 1.6, 2.2 * lines + 0.4))
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(machines) :]:
        axes.set_axis_off()
    for axes, machine in zip(panels.flat, machines, strict=False):
        on_machine = [standing for standing in standings if standing.hardware == machine]
        for number, standing in enumerate(on_machine):
            colour = OKABE_ITO[number % len(OKABE_ITO)]
            style = STYLES[number // len(OKABE_ITO) % len(STYLES)]
            ratios = sorted({1.0, *standing.ratios, MAX_FACTOR})  # the curve rises at each ratio
            shares = [standing.within(ratio) for ratio in ratios]
            axes.step(ratios, shares, where="post", color=colour, ls=style, lw=1.2)
        axes.set_title(machine)
        axes.grid(color=sheet.LINE, lw=0.4, alpha=0.6)
        axes.set_xlabel("time / fastest")
    panels.flat[0].set_xscale("log", base=2)
    panels.flat[0].set_xlim(1, MAX_FACTOR)
    panels.flat[0].set_ylim(0, 1.02)
    panels.flat[0].set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    for row in panels:
        row[0].set_ylabel("share of points")
    curves = panels.flat[0].get_lines()
    figure.legend(curves, schedules, loc="outside center right", frameon=False)
    figure.set_layout_engine("constrained")
    return figure
