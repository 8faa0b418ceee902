"""Simulate one plan: time, idle share, transfers, memory, bounds.

Options add stragglers and slow links, and write a trace of the run.

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
    scenario_of,
    scenario_options,
    source_options,
)
from ringloom.cli.output import show, working
from ringloom.comparison import asked
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

KINDS = {
    "attend": "attends",
    "merge": "merging",
    "unpack": "unpacking",
    "message": "messages",
    "prologue": "prologue",
}


def path_picture(name: str, legs: tuple[Leg, ...]) -> Table:
    """Returns a critical path as a table with the time of each part; of a long one, both ends."""
    total = sum(leg.end - leg.start for leg in legs) or 1.0
    shares = [
        f"{sum(leg.end - leg.start for leg in legs if leg.kind == kind) / total:.0%} {word}"
        for kind, word in KINDS.items()
        if any(leg.kind == kind for leg in legs)
    ]
    rows = [(leg.words, seconds(leg.start), seconds(leg.end - leg.start)) for leg in legs]
    shown = both_ends(rows, (f"... {len(legs) - SHOWN} more ...", "", ""))
    return plain_table(f"{name}: {', '.join(shares)}", "from", "takes", rows=shown)


def sum_in_words(tensor: str, widths: dict[int, int]) -> str:
    """Returns a tensor and its messages: DKV in 32 bit (56 messages), finished in 16 bit (8)."""
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
    help="recurrence: fast; events: models shared links and buffers; auto: chooses.",
)
@scenario_options
@click.option("--trace", "trace_file", type=TRACE, help="Write a Chrome trace (.json or .json.gz).")
def command(
    source: str, hardware: str, engine: Engine, trace_file: str | None, **given: Any
) -> None:
    scenario = scenario_of(given)
    machine, record = find_hardware(hardware), True if trace_file else None
    plans = plans_of(source, given, attend_price(scenario.machine(machine)))
    with working("simulating"):
        result = simulate(plans, machine, scenario, engine=engine, record=record)
        own = spread(plans, machine, scenario, result.makespan, calibrated=False)
        low, high = interval(machine, plans.pass_, result.makespan, own)
        rows = basis(machine.name, plans.pass_)
        used = constants_of(plans, machine, scenario)
        rests = [key for key in used if not machine.constants[key].calibrated]
    paths = {
        f"critical path{f', {t.plan.pass_}' * bool(result.passes)}": critical_path(t, begin)
        for one, begin in result.in_turn()
        if (t := one.timeline) and t.rows is not None  # those of a large plan are not kept
    }
    sums = {name: widths for one in plans for name, widths in travelling_sums(one).items()}
    document = {
        "schedule": plans.name,
        **result.as_row(),
        "travelling_sums": sums,
        "interval_s": [low, high],
        "interval_basis": rows.as_dict(),
        "uncalibrated": rests,
        "engine": result.engine,
        "contended": result.contended,
        "critical_path": [leg.as_row() for legs in paths.values() for leg in legs]
        if paths
        else None,
    }
    said = asked(plans.workload, plans.pass_, plans.ranks, machine.name, scenario)
    pictures: list[Any] = [titled(plans.name, f": {said}"), prediction(result)]
    pictures.append(f"90% prediction interval: {seconds(low)} to {seconds(high)}, by {rows.words}")
    if rests:
        pictures.append(f"uncalibrated constants: {', '.join(rests)}")
    if sums:
        pictures.append(f"partial sums sent: {'; '.join(starmap(sum_in_words, sums.items()))}")
    pictures += starmap(path_picture, paths.items())
    written = None
    if trace_file:
        file = save_trace(trace(result), trace_file)
        written = f"trace written to {file}; open it at https://ui.perfetto.dev"
    show(document, *pictures, text=written)
