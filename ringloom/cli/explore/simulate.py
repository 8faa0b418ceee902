"""Show the predicted time, traffic, memory and bounds of one plan.

Options add stragglers and slow links, and write a trace of the simulated run.

Example:
  ringloom simulate zigzag --ranks 8 --seq 256k --kv-heads 8 --straggler 3=0.5
"""

from itertools import starmap
from typing import Any

import click
from rich.table import Table

from ringloom.cli.options import (
    TRACE,
    hardware_option,
    plans_of,
    pop_scenario,
    scenario_options,
    source_options,
)
from ringloom.cli.output import show, working
from ringloom.comparison import describe_request
from ringloom.planner.analysis.messages import travelling_sums
from ringloom.simulator.chrome_trace import save_trace, trace
from ringloom.simulator.confidence import basis, constants_of, interval, spread
from ringloom.simulator.costs.prices import attend_price
from ringloom.simulator.critical_path import Leg, critical_path
from ringloom.simulator.engines.choice import ENGINES, Engine
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.prediction import simulate
from ringloom.views.tables import plain_table, prediction, titled
from ringloom.views.units import SHOWN, both_ends, seconds

LEG_LABELS = {
    "attend": "attends",
    "merge": "merging",
    "unpack": "unpacking",
    "message": "messages",
    "prologue": "prologue",
}


def path_picture(name: str, legs: tuple[Leg, ...]) -> Table:
    """Returns a critical path as a table of its parts; shortens a long path in the middle."""
    total = sum(leg.end - leg.start for leg in legs) or 1.0
    shares = [
        f"{sum(leg.end - leg.start for leg in legs if leg.kind == kind) / total:.0%} {label}"
        for kind, label in LEG_LABELS.items()
        if any(leg.kind == kind for leg in legs)
    ]
    rows = [(leg.words, seconds(leg.start), seconds(leg.end - leg.start)) for leg in legs]
    shown = both_ends(rows, (f"... {len(legs) - SHOWN} more ...", "", ""))
    return plain_table(f"{name}: {', '.join(shares)}", "start", "time", rows=shown)


def describe_sums(tensor: str, widths: dict[int, int]) -> str:
    """Describes messages of a tensor: DKV in 32 bit (56 messages), finished in 16 bit (8)."""
    widest = max(widths)
    parts = [
        f"{'finished ' * (width < widest)}in {width} bit ({count} message{'s' * (count > 1)})"
        for width, count in widths.items()
    ]
    return f"{tensor} {', '.join(parts)}"


@click.command()
@source_options()
@hardware_option
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    help="recurrence: fast; events: models shared links and buffers; auto: events if needed.",
)
@scenario_options
@click.option("--trace", "trace_file", type=TRACE, help="Write a Chrome trace (.json or .json.gz).")
def command(
    source: str, hardware: str, engine: Engine, trace_file: str | None, **options: Any
) -> None:
    scenario = pop_scenario(options)
    machine, record = find_hardware(hardware), True if trace_file else None
    plans = plans_of(source, options, attend_price(scenario.machine(machine)))
    with working("simulating"):
        result = simulate(plans, machine, scenario, engine=engine, record=record)
        deviation = spread(plans, machine, scenario, result.makespan, calibrated=False)
        low, high = interval(machine, plans.pass_, result.makespan, deviation)
        measurements = basis(machine.name, plans.pass_)
        constants = constants_of(plans, machine, scenario)
        uncalibrated = [key for key in constants if not machine.constants[key].calibrated]
    paths = {
        f"critical path{f', {t.plan.pass_}' * bool(result.passes)}": critical_path(t, start)
        for run, start in result.in_turn()
        if (t := run.timeline) and t.rows is not None  # large plans keep no rows
    }
    sums = {name: widths for plan in plans for name, widths in travelling_sums(plan).items()}
    document = {
        "schedule": plans.name,
        **result.as_row(),
        "travelling_sums": sums,
        "interval_s": [low, high],
        "interval_basis": measurements.as_dict(),
        "uncalibrated": uncalibrated,
        "engine": result.engine,
        "contended": result.contended,
        "critical_path": [leg.as_row() for legs in paths.values() for leg in legs]
        if paths
        else None,
    }
    title = describe_request(plans.workload, plans.pass_, plans.ranks, machine.name, scenario)
    pictures: list[Any] = [titled(plans.name, f": {title}"), prediction(result)]
    limits = f"{seconds(low)} to {seconds(high)}"
    pictures.append(f"90% prediction interval: {limits}, based on {measurements.words}")
    if uncalibrated:
        pictures.append(f"uncalibrated constants: {', '.join(uncalibrated)}")
    if sums:
        pictures.append(f"partial sums sent: {'; '.join(starmap(describe_sums, sums.items()))}")
    pictures += starmap(path_picture, paths.items())
    written = None
    if trace_file:
        file = save_trace(trace(result), trace_file)
        written = f"trace written to {file}; open it at https://ui.perfetto.dev"
    show(document, *pictures, text=written)
