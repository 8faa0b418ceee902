"""Predict one plan: time, idle share, transfers, memory, bounds.

A slow rank or link may be named, and the trace of the run be written.

Example:
  ringloom simulate zigzag --ranks 8 --seq 256k --heads 32 --kv-heads 8 --straggler 3=0.5
"""

from typing import Any, Literal

import click
from rich.table import Table

from ringloom.cli.options import (
    hardware_option,
    overlap_option,
    plans_of,
    trim_option,
    workload_options,
)
from ringloom.cli.output import json_option, show
from ringloom.cli.progress import working
from ringloom.views.tables import plain_table, prediction
from ringloom.views.units import seconds
from simulator.chrome_trace import save_trace, trace
from simulator.critical_path import Leg, critical_path
from simulator.engines.choice import ENGINES, Engine
from simulator.network.routes import ends_of
from simulator.network.topology import Place, forms
from simulator.prediction import simulate
from simulator.scenario import Scenario

SHOWN = 12  # parts of a critical path that are printed
VERBS = {"attend": "attends", "merge": "merging", "message": "messages", "prologue": "prologue"}


def straggler(value: str) -> tuple[int, float]:
    """Read RANK=FACTOR, a rank and its speed."""
    rank, _, factor = value.partition("=")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not RANK=FACTOR, such as 3=0.5") from None


def slow_link(value: str) -> tuple[tuple[Place, Place], float]:
    """Read A-B=FACTOR, a link by its two ends and the factor on its bandwidth."""
    link, _, factor = value.partition("=")
    try:
        ends, number = ends_of(link), 0.0 if factor == "cut" else float(factor)
    except ValueError:
        number = -1.0
    if number < 0:
        message = f"{value!r} is not A-B=FACTOR, such as 6-7=0.1 or 6-7=cut"
        raise click.BadParameter(message)
    return ends, number


def buffers(value: str) -> int | str:
    """Read a number of receive buffers, or "plan" for what the plan states."""
    if value == "plan":
        return "plan"
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number from 1 up nor plan")
    return int(value)


def path_rows(legs: tuple[Leg, ...]) -> list[dict[str, Any]]:
    """A critical path as plain values for JSON."""
    return [
        {
            "kind": leg.kind,
            "rank": leg.rank,
            "step": leg.step,
            "link": leg.link or None,
            "start_s": leg.start,
            "end_s": leg.end,
            "words": leg.words,
        }
        for leg in legs
    ]


def path_picture(legs: tuple[Leg, ...]) -> Table:
    """A critical path in words, with what each part takes; of a long one, both ends."""
    total = sum(leg.end - leg.start for leg in legs) or 1.0
    shares = [
        f"{sum(leg.end - leg.start for leg in legs if leg.kind == kind) / total:.0%} {word}"
        for kind, word in VERBS.items()
        if any(leg.kind == kind for leg in legs)
    ]
    table = plain_table(f"critical path: {', '.join(shares)}", "from", "takes")
    for number, leg in enumerate(legs):
        if SHOWN // 2 <= number < len(legs) - SHOWN // 2 and len(legs) > SHOWN:
            if number == SHOWN // 2:
                table.add_row(f"... {len(legs) - SHOWN} more ...", "", "")
        else:
            table.add_row(leg.words, seconds(leg.start), seconds(leg.end - leg.start))
    return table


@click.command()
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options()
@trim_option
@hardware_option
@overlap_option
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="auto takes the fast one where it applies.",
)
@click.option(
    "--straggler",
    "speeds",
    type=straggler,
    metavar="RANK=FACTOR",
    multiple=True,
    help="A rank and its speed, such as 3=0.5; may be repeated.",
)
@click.option(
    "--slow-link",
    "links",
    type=slow_link,
    metavar="A-B=FACTOR",
    multiple=True,
    help="A link and the factor on its bandwidth, such as 6-7=0.1; 0 or cut cuts it.",
)
@click.option("--topology", help=f"{forms()} or a JSON file of links.")
@click.option(
    "--buffers", type=buffers, metavar="N|PLAN", help="Receive buffers per input that travels."
)
@click.option("--trace", "trace_file", help="Write a Chrome trace, .json or .json.gz.")
@json_option
def command(
    source: str,
    hardware: str,
    overlap: bool,
    engine: Engine,
    speeds: tuple[tuple[int, float], ...],
    links: tuple[tuple[tuple[Place, Place], float], ...],
    topology: str | None,
    buffers: int | Literal["plan"] | None,
    trace_file: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    scenario = Scenario(overlap, dict(speeds), dict(links), topology, buffers)
    plans, record = plans_of(source, given), True if trace_file else None
    with working("simulating"):
        result = simulate(plans, hardware, scenario, engine=engine, record=record)
    # None where the rows of a large plan were not kept.
    timelines = [one.timeline for one in result.passes or (result,)]
    paths = [critical_path(t) for t in timelines if t is not None and t.rows is not None]
    document = {
        "schedule": plans.name,
        **result.as_row(),
        "engine": result.engine,
        "contended": result.contended,
        "critical_path": [row for legs in paths for row in path_rows(legs)] if paths else None,
    }
    pictures = [f"[bold]{plans.name}[/] on {hardware}", prediction(result)]
    pictures += map(path_picture, paths)
    if trace_file:
        file = save_trace(trace(result), trace_file)
        pictures.append(f"trace written to {file}; https://ui.perfetto.dev shows it")
    show(as_json, document, *pictures)
