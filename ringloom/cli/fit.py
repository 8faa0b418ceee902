"""Fit a link or a kernel curve to a CSV file.

FILE has a first line bytes,seconds (for alpha + bytes / bandwidth) or size,tflops (for
Tmax size / (size + S_half)), and two rows or more.
"""

import csv
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from planner.errors import PlanError
from ringloom.cli.output import json_option, show
from simulator.hardware.fit import Fit, fit_curve, fit_link

FORMS = {("bytes", "seconds"): fit_link, ("size", "tflops"): fit_curve}
LARGEST_FILE = 2**24  # bytes
UNITS = {"alpha": "s", "bandwidth": "bytes/s", "tmax": "TF/s", "s_half": ""}


@click.command(help=__doc__)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def command(file: Path, as_json: bool) -> None:
    names, rows = _read(file)
    found = FORMS[names](*zip(*rows, strict=True))
    table = Table(*names, "fitted", "error", box=None)
    for (x, y), fitted, error in zip(rows, found.fitted, found.errors, strict=True):
        table.add_row(f"{x:g}", f"{y:.4g}", f"{fitted:.4g}", f"{error:+.1%}")
    show(as_json, _document(found, names, rows), table, _told(found))


def _told(found: Fit) -> str:
    constants = ", ".join(f"{k} = {v:.4g} {UNITS[k]}".rstrip() for k, v in found.constants.items())
    errors = f"mean error {found.mean_error:.1%}, worst {found.worst_error:.1%}"
    return f"[bold]{constants}[/]; {errors}"


def _document(
    found: Fit, names: tuple[str, ...], rows: list[tuple[float, float]]
) -> dict[str, Any]:
    told = zip(rows, found.fitted.tolist(), found.errors.tolist(), strict=True)
    return {
        "form": found.form,
        **found.constants,
        "mean_error": found.mean_error,
        "worst_error": found.worst_error,
        "rows": [
            {**dict(zip(names, row, strict=True)), "fitted": fitted, "error": error}
            for row, fitted, error in told
        ],
    }


def _read(file: Path) -> tuple[tuple[str, str], list[tuple[float, float]]]:
    """The two columns of a file that can be fitted, in the order of `FORMS`."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE} bytes")
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True)
            have = [name.strip().lower() for name in reader.fieldnames or ()]
            reader.fieldnames = have
            names = next((n for n in FORMS if set(n) <= set(have)), None)
            if names is None:
                forms = " or ".join(",".join(n) for n in FORMS)
                raise ValueError(f"the first line must name {forms}, not {','.join(have)[:80]!r}")
            rows = [(float(row[names[0]]), float(row[names[1]])) for row in reader]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise PlanError(f"{file}: {' '.join(str(error).split())[:200]}") from None
    return names, rows
