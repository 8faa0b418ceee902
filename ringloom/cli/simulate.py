"""Predict one plan: time, idle share, exposed transfers, bytes, memory, bounds."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.table import Table

from planner.plans import Plans
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
from simulator.engines.choice import ENGINES
from simulator.hardware import hardware as find_hardware
from simulator.network.topology import Place
from simulator.prediction import Prediction, simulate

Function = TypeVar("Function", bound=Callable[..., Any])
SHOWN = 12  # parts of a critical path that are printed
VERBS = {"attend": "attends", "merge": "merging", "message": "messages", "prologue": "prologue"}


class Straggler(click.ParamType[tuple[int, float]]):
    """RANK=FACTOR, a rank and its speed."""

    name = "RANK=FACTOR"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """(rank, speed)"""
        rank, _, factor = str(value).partition("=")
        try:
            return int(rank), float(factor)
        except ValueError:
            self.fail(f"{value!r} is not RANK=FACTOR, such as 3=0.5", param, ctx)


class SlowLink(click.ParamType[tuple[tuple[Place, Place], float]]):
    """A-B=FACTOR, a link by its two ends and the factor on its bandwidth; 0 or cut cuts it."""

    name = "A-B=FACTOR"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[Place, Place], float]:
        """((place, place), factor)"""
        link, _, factor = str(value).partition("=")
        ends = tuple(int(end) if end.isdecimal() else end for end in link.split("-"))
        try:
            number = 0.0 if factor == "cut" else float(factor)
        except ValueError:
            number = -1.0
        if len(ends) != 2 or "" in ends or number < 0:
            self.fail(f"{value!r} is not A-B=FACTOR, such as 6-7=0.1 or 6-7=cut", param, ctx)
        return (ends[0], ends[1]), number


class Buffers(click.ParamType[int | str]):
    """A number of receive buffers, or what the plan states."""

    name = "N|plan"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """A number from 1 up, or "plan"."""
        if value == "plan":
            return "plan"
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither a number from 1 up nor plan", param, ctx)
        return int(value)


CONDITIONS = [
    click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True),
    click.option(
        "--straggler",
        "speeds",
        type=Straggler(),
        multiple=True,
        help="A rank and its speed, such as 3=0.5; may be repeated.",
    ),
    click.option(
        "--slow-link",
        "links",
        type=SlowLink(),
        multiple=True,
        help="A link and the factor on its bandwidth, such as 6-7=0.1; 0 or cut cuts it.",
    ),
    click.option(
        "--topology",
        help="nodes, nodes:nics=2, switch, ring, torus:4x4 or a JSON file of links.",
    ),
    click.option("--buffers", type=Buffers(), help="Receive buffers per input that travels."),
]


def condition_options(function: Function) -> Function:
    """The options that say under which conditions a plan runs."""
    for option in reversed(CONDITIONS):
        function = option(function)
    return function


def conditions(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `simulate` that the options of `condition_options` describe, taken out."""
    found = {name: given.pop(name) for name in ("engine", "topology", "buffers")}
    return found | {"speeds": dict(given.pop("speeds")), "links": dict(given.pop("links"))}


def paths(found: Prediction) -> list[tuple[Leg, ...]]:
    """The critical path of each pass; none where the rows of a large plan were not kept."""
    timelines = [one.timeline for one in found.passes or (found,)]
    return [critical_path(t) for t in timelines if t is not None and t.rows is not None]


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
    some = legs if len(legs) <= SHOWN else (*legs[: SHOWN // 2], *legs[-SHOWN // 2 :])
    for number, leg in enumerate(some):
        if len(some) < len(legs) and number == SHOWN // 2:
            table.add_row(f"... {len(legs) - SHOWN} more ...", "", "")
        times = seconds(leg.start), seconds(leg.end - leg.start)
        table.add_row(leg.words, *times)
    return table


def write_trace(found: Prediction, path: str) -> str:
    """Write the trace of a prediction; a line that says so."""
    return f"trace written to {save_trace(trace(found), path)}; https://ui.perfetto.dev shows it"


@click.command(help=__doc__)
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options()
@trim_option
@hardware_option
@overlap_option
@condition_options
@click.option("--trace", "trace_file", help="Write a Chrome trace, .json or .json.gz.")
@json_option
def command(
    source: str,
    hardware: str,
    overlap: bool,
    trace_file: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    under = conditions(given)
    plans, record = plans_of(source, given), True if trace_file else None
    with working("simulating"):
        found = simulate(plans, find_hardware(hardware), overlap=overlap, record=record, **under)
    legs, head = paths(found), f"[bold]{plans.name}[/] on {hardware}"
    written = [write_trace(found, trace_file)] if trace_file else []
    pictures = prediction(found), *map(path_picture, legs), *written
    show(as_json, _prediction(plans, found, legs), head, *pictures)


def _prediction(plans: Plans, found: Prediction, legs: list[tuple[Leg, ...]]) -> dict[str, Any]:
    return {
        "schedule": plans.name,
        **found.as_row(),
        "engine": found.engine,
        "contended": found.contended,
        "critical_path": [row for path in legs for row in path_rows(path)] if legs else None,
    }
