"""`ringloom calibrate` and `ringloom fit`: constants from measurements."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from planner.errors import PlanError
from ringloom.measuring import Calibration, calibrate
from ringloom.output import json_option, show
from ringloom.progress import progress
from simulator.fitting import Fit, fit_curve, fit_link
from simulator.measured import as_toml

FORMS = {("bytes", "seconds"): fit_link, ("size", "tflops"): fit_curve}
LARGEST_FILE = 2**24  # bytes
UNITS = {"alpha": "s", "bandwidth": "bytes/s", "tmax": "TF/s", "s_half": ""}


@click.command(name="calibrate")
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="TOML file.")
@click.option("--quick", is_flag=True, help="Fewer repetitions: half a minute, less exact.")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu", "numpy"]), help="By default the first there is."
)
@json_option
def calibrate_command(output: str, quick: bool, device: str | None, as_json: bool) -> None:
    """Measure this machine and write a hardware file of it."""
    if not Path(output).resolve().parent.is_dir():
        raise PlanError(f"cannot write {output}: no such folder")
    found = calibrate(device or "", quick, _progress)
    head = "Written by `ringloom calibrate`; use it with --hardware FILE."
    try:
        Path(output).write_text(as_toml(found.hardware, head), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot write {output}: {error.strerror}") from None
    document = {
        "hardware": found.hardware.name,
        "output": output,
        "calls": len(found.calls),
        "median_error": {p: kernel.median_error for p, kernel in found.kernels.items()},
        "constants": {key: c.value for key, c in found.hardware.constants.items()},
    }
    show(as_json, document, *_summary(found), f"written to {output}")


def _progress(rounds: Iterable[Any]) -> Iterable[Any]:
    return progress(rounds, "measuring")


def _summary(found: Calibration) -> Iterator[Any]:
    machine = found.hardware
    table = Table("pass", "TF/s", "S_half", "launch", "median error", box=None)
    for name, kernel in found.kernels.items():
        half = f"{kernel.rows + kernel.columns:.0f}"
        launch, error = f"{kernel.launch * 1e6:.1f} us", f"{kernel.median_error:.1%}"
        table.add_row(name, f"{kernel.rate / 1e12:.3g}", half, launch, error)
    yield f"[bold]{machine.name}[/]: {len(found.calls)} kinds of kernel calls"
    yield table
    link = machine.links[0]
    yield f"memory {machine['memory.bandwidth'] / 1e9:.3g} GB/s, link {_link(link)}"


def _link(link: Any) -> str:
    return f"{link.alpha * 1e6:.3g} us + bytes / {link.bandwidth / 1e9:.3g} GB/s"


@click.command(name="fit")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def fit_command(file: Path, as_json: bool) -> None:
    """Fit a link or a kernel curve to a CSV file.

    FILE has a first line bytes,seconds (for alpha + bytes / bandwidth) or size,tflops (for
    Tmax size / (size + S_half)), and two rows or more.
    """
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
