"""Fit a link or a kernel curve to a CSV file.

FILE starts with a header, followed by at least two rows. The header bytes,seconds fits
alpha + bytes / bandwidth; the header size,tflops fits Tmax size / (size + S_half).

Example:
  ringloom fit messages.csv
"""

from pathlib import Path

import click
from rich.table import Table

from ringloom.cli.output import csv_option, show
from ringloom.csv_rows import positive_number, records
from ringloom.planner.errors import RingloomError
from ringloom.simulator.hardware.measured import fit_curve, fit_link
from ringloom.views.tables import titled

FORMS = {("bytes", "seconds"): fit_link, ("size", "tflops"): fit_curve}
UNITS = {"alpha": "s", "bandwidth": "bytes/s", "tmax": "TF/s", "s_half": ""}


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@csv_option
def command(file: Path) -> None:
    names, measured = _read(file)
    fit = FORMS[names](*zip(*measured, strict=True))
    table, rows = Table(*names, "fitted", "error", box=None), list[dict[str, float]]()
    columns = zip(measured, fit.fitted.tolist(), fit.errors.tolist(), strict=True)
    for (x, y), fitted, error in columns:
        rows.append({names[0]: x, names[1]: y, "fitted": fitted, "error": error})
        table.add_row(f"{x:g}", f"{y:.4g}", f"{fitted:.4g}", f"{error:+.1%}")
    document = {
        "form": fit.form,
        **fit.constants,
        "mean_error": fit.mean_error,
        "worst_error": fit.worst_error,
        "rows": rows,
    }
    constants = ", ".join(f"{k} = {v:.4g} {UNITS[k]}".rstrip() for k, v in fit.constants.items())
    errors = f"mean error {fit.mean_error:.1%}, worst {fit.worst_error:.1%}"
    show(document, table, titled(constants, f"; {errors}"), rows=rows)


def _read(file: Path) -> tuple[tuple[str, str], list[tuple[float, float]]]:
    """Returns the names and values of the two columns to fit, in the order of `FORMS`."""
    rows = records(file)
    names = next((n for n in FORMS if set(n) <= rows[0].keys()), None)
    if names is None:
        forms = " or ".join(",".join(n) for n in FORMS)
        columns = ",".join(rows[0])[:80]
        raise RingloomError(f"{file}: the first line must contain {forms}, not {columns!r}")
    x, y = names
    labelled = [(f"{file}, row {number}", row) for number, row in enumerate(rows, 1)]
    return names, [(positive_number(*row, x), positive_number(*row, y)) for row in labelled]
