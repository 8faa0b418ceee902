"""Show the effect of a 10% change in each hardware constant.

The column 'uncertainty' is the change of the fastest schedule's time over the plausible range of a
constant; measure the uncalibrated constant with the largest value first. --vary shows where one
schedule overtakes another.

Example:
  ringloom sensitivity --ranks 8 --seq 64k --schedules zigzag,ulysses
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ringloom.cli.options import Written, compared, comparison_options
from ringloom.cli.output import show, working
from ringloom.planner.optional import needing
from ringloom.simulator.confidence import Sensitivity, sensitivity
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.what_if import OWN, Curves, curves
from ringloom.views.tables import plain_table
from ringloom.views.units import seconds

BAR = 12  # characters of the longest bar
MOST = 3  # schedules to compare when none are named
WORTH = 0.001  # of the time: constants that change it less need not be measured


def tornado(rows: list[Sensitivity], schedule: str, usual: float) -> Table:
    """Returns a row per constant: a schedule's time with 10% less and with 10% more of it."""
    table = plain_table("constant", "-10%", "", "+10%", "uncertainty", numbers=slice(1, None))
    table.columns[2].justify = "left"  # right-aligned, blanks after a bar would be cut off
    effects = [[one / usual - 1 for one in row.seconds[schedule]] for row in rows]
    longest = max((abs(x) for pair in effects for x in pair), default=0) or 1
    for row, (less, more) in zip(rows, effects, strict=True):
        left, right = (round(abs(x) / longest * BAR) * "█" for x in (less, more))
        star = "" if row.calibrated else " *"
        cells = f"{less:+z.1%}", f"{left:>{BAR}}|{right}", f"{more:+z.1%}"
        table.add_row(row.constant + star, *cells, f"{row.doubt:.1%}")
    return table


def _range(value: str) -> tuple[str, float, float]:
    key, _, ends = value.partition("=")
    low, high = map(float, ends.split(":"))
    return key, low, high


def _draw(drawn: Curves, file: Path) -> None:
    sheet = needing("plots", "ringloom.figures.sheet")
    sheet.write(lambda: drawn.plot().figure, file.stem, file.parent, (file.suffix[1:],))


@click.command()
@comparison_options(MOST)
@click.option(
    "--vary",
    type=Written("KEY=LOW:HIGH", "intra.bandwidth=1e10:4e11", _range),
    help=f"Also vary a constant or {', '.join(OWN)}, and show where curves cross.",
)
@click.option(
    "--picture", type=click.Path(), help="Draw the curves of --vary to this SVG or PNG file."
)
def command(
    vary: tuple[str, float, float] | None,
    picture: str | None,
    **given: Any,
) -> None:
    if picture and not vary:
        raise click.UsageError("--picture requires --vary")
    if picture and Path(picture).suffix not in (".svg", ".png"):
        raise click.UsageError(f"--picture must end in .svg or .png, not {picture}")
    machine, comparison = find_hardware(given["hardware"]), compared(given, MOST)
    plans = {case.row.schedule: case.plans for case in comparison.cases}
    with working("simulating"):
        rows, usual = sensitivity(plans, machine, comparison.scenario)
        drawn: Curves | None = curves(plans, machine, comparison.scenario, *vary) if vary else None
    best = comparison.recommendation.schedule
    first = next((row for row in rows if not row.calibrated and row.doubt >= WORTH), None)
    advice = "No uncalibrated constant changes the time by 0.1% or more."
    if first:
        advice = f"Measure {first.constant} first: it may change the time by {first.doubt:.1%}."
    if picture and drawn:
        _draw(drawn, Path(picture))
    document = {
        "makespan_s": usual,
        "fastest": best,
        "order_validated": not comparison.unvalidated,
        "measure_first": first.constant if first else None,
        "uncalibrated": [row.constant for row in rows if not row.calibrated],
        "rows": [asdict(row) for row in rows],
        "sweep": asdict(drawn) if drawn else None,
    }
    title = f"{best} takes {seconds(usual[best])}: {comparison.title}; * not calibrated"
    refused = [f"{one.schedule} {one.verdict}: {one.reason}" for one in comparison.refused]
    crossings = drawn.sentences if drawn else []
    if comparison.unvalidated:
        crossings = [*crossings, comparison.unvalidated]
    show(document, title, tornado(rows, best, usual[best]), advice, *crossings, *refused)
