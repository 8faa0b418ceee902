"""Show the effect of a 10% change in each hardware constant.

The column 'uncertainty' shows how much the time of the fastest schedule changes over the plausible
range of a constant. Measure the uncalibrated constant with the largest value first. Use --vary to
see where one schedule overtakes another.

Example:
  ringloom sensitivity --ranks 8 --seq 64k --schedules zigzag,ulysses
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ringloom.cli.options import ParsedText, compare_schedules, comparison_options
from ringloom.cli.output import show, working
from ringloom.planner.optional import import_optional
from ringloom.simulator.confidence import Sensitivity, sensitivity
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.what_if import SCENARIO_KEYS, Curves, curves
from ringloom.views.tables import plain_table
from ringloom.views.units import seconds

BAR_WIDTH = 12  # characters of the longest bar
MAX_SCHEDULES = 3  # schedules to compare when none are named
MIN_EFFECT = 0.001  # fraction of the time; constants with a smaller effect need no measurement


def tornado(rows: list[Sensitivity], schedule: str, baseline: float) -> Table:
    """Returns a row per constant with the change of a schedule's time at -10% and +10%.

    `baseline`: seconds with unchanged constants.
    """
    table = plain_table("constant", "-10%", "", "+10%", "uncertainty", numbers=slice(1, None))
    table.columns[2].justify = "left"  # right alignment would strip the spaces after a bar
    effects = [[time / baseline - 1 for time in row.seconds[schedule]] for row in rows]
    largest = max((abs(x) for pair in effects for x in pair), default=0) or 1
    for row, (lower, higher) in zip(rows, effects, strict=True):
        left, right = (round(abs(x) / largest * BAR_WIDTH) * "█" for x in (lower, higher))
        star = "" if row.calibrated else " *"
        cells = f"{lower:+z.1%}", f"{left:>{BAR_WIDTH}}|{right}", f"{higher:+z.1%}"
        table.add_row(row.constant + star, *cells, f"{row.doubt:.1%}")
    return table


def _range(value: str) -> tuple[str, float, float]:
    key, _, ends = value.partition("=")
    low, high = map(float, ends.split(":"))
    return key, low, high


def _draw(crossings: Curves, file: Path) -> None:
    sheet = import_optional("plots", "ringloom.figures.sheet")
    sheet.write(lambda: crossings.plot().figure, file.stem, file.parent, (file.suffix[1:],))


@click.command()
@comparison_options(MAX_SCHEDULES)
@click.option(
    "--vary",
    type=ParsedText("KEY=LOW:HIGH", "intra.bandwidth=1e10:4e11", _range),
    help=f"Vary a constant or {', '.join(SCENARIO_KEYS)}, and show where schedules cross over.",
)
@click.option(
    "--picture", type=click.Path(), help="Draw the curves of --vary to this SVG or PNG file."
)
def command(
    vary: tuple[str, float, float] | None,
    picture: str | None,
    **options: Any,
) -> None:
    if picture and not vary:
        raise click.UsageError("--picture requires --vary")
    if picture and Path(picture).suffix not in (".svg", ".png"):
        raise click.UsageError(f"--picture must end in .svg or .png, not {picture}")
    machine, comparison = (
        find_hardware(options["hardware"]),
        compare_schedules(options, MAX_SCHEDULES),
    )
    plans = {case.row.schedule: case.plans for case in comparison.cases}
    with working("simulating"):
        rows, times = sensitivity(plans, machine, comparison.scenario)
        crossings = curves(plans, machine, comparison.scenario, *vary) if vary else None
    best = comparison.recommendation.schedule
    first = next((row for row in rows if not row.calibrated and row.doubt >= MIN_EFFECT), None)
    advice = "No uncalibrated constant changes the time by 0.1% or more."
    if first:
        advice = f"Measure {first.constant} first: it may change the time by {first.doubt:.1%}."
    if picture and crossings:
        _draw(crossings, Path(picture))
    document = {
        "makespan_s": times,
        "fastest": best,
        "order_validated": not comparison.unvalidated,
        "measure_first": first.constant if first else None,
        "uncalibrated": [row.constant for row in rows if not row.calibrated],
        "rows": [asdict(row) for row in rows],
        "sweep": asdict(crossings) if crossings else None,
    }
    title = f"{best} takes {seconds(times[best])}: {comparison.title}; * not calibrated"
    sentences = [*(crossings.sentences if crossings else []), comparison.unvalidated]
    sentences += [f"{row.schedule} {row.verdict}: {row.reason}" for row in comparison.refused]
    show(document, title, tornado(rows, best, times[best]), advice, *filter(None, sentences))
