"""Measure this machine and write its hardware file.

Example:
  ringloom calibrate -o mine.toml --quick
  ringloom compare --ranks 8 --seq 64k --hardware mine.toml
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import click
from rich.table import Table

from ringloom.calibrating import Calibration, calibrate
from ringloom.cli.options import FILE
from ringloom.cli.output import progress, show
from ringloom.planner.disk import write
from ringloom.simulator.hardware.measured import as_toml
from ringloom.views.tables import titled


@click.command()
@click.option("-o", "--output", type=FILE, required=True, help="Output file (TOML).")
@click.option("--quick", is_flag=True, help="Take half a minute: fewer repetitions, less precise.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu", "numpy"]),
    help="Device to measure.  [default: the first that is available]",
)
def command(output: str, quick: bool, device: str | None) -> None:
    calibration = calibrate(device or "", quick, partial(progress, verb="measuring"))
    header = "Written by `ringloom calibrate`; use it with --hardware FILE."
    write(output, as_toml(calibration.hardware, header).encode())
    document = {
        "hardware": calibration.hardware.name,
        "output": output,
        "calls": len(calibration.calls),
        "median_error": {p: kernel.median_error for p, kernel in calibration.kernels.items()},
        "constants": {key: c.value for key, c in calibration.hardware.constants.items()},
    }
    show(document, *_summary(calibration), text=f"written to {output}")


def _summary(calibration: Calibration) -> Iterator[Any]:
    machine = calibration.hardware
    table = Table("pass", "TF/s", "traffic", "launch", "median error", box=None)
    for name, kernel in calibration.kernels.items():
        launch, error = f"{kernel.constants['launch'] * 1e6:.1f} us", f"{kernel.median_error:.1%}"
        traffic = f"{machine.option('attention.traffic', name):.2g}"
        table.add_row(name, f"{kernel.rate / 1e12:.3g}", traffic, launch, error)
    yield titled(machine.name, f": {len(calibration.calls)} kinds of kernel calls")
    yield table
    link, memory = machine.links[0], machine["memory.bandwidth"]
    link_time = f"{link.alpha * 1e6:.3g} us + bytes / {link.bandwidth / 1e9:.3g} GB/s"
    yield f"memory {memory / 1e9:.3g} GB/s, link {link_time}"
