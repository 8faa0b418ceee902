"""Options of scenarios, and of comparisons in one: a file, and single values over it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from ringloom.cli.options import (
    Function,
    grouped,
    hardware_option,
    overlap_option,
    schedules_option,
    workload,
    workload_options,
)
from ringloom.cli.progress import progress
from ringloom.comparison import Comparison, compare
from simulator.network.routes import ends_of
from simulator.network.topology import Place, forms
from simulator.scenario import Scenario
from simulator.scenario_tables import factor_of, scenario_file


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
        return ends_of(link), factor_of(factor)
    except ValueError:
        message = f"{value!r} is not A-B=FACTOR, such as 6-7=0.1 or 6-7=cut"
        raise click.BadParameter(message) from None


def buffers(value: str) -> int | str:
    """Read a number of receive buffers, or "plan" for what the plan states."""
    if value == "plan":
        return "plan"
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number from 1 up nor plan")
    return int(value)


scenario_options = grouped(
    click.option("--scenario", "scenario", help="A TOML or JSON file of what is not as usual."),
    overlap_option,
    click.option(
        *("--straggler", "speeds"),
        type=straggler,
        metavar="RANK=FACTOR",
        multiple=True,
        help="A rank and its speed, such as 3=0.5; may be repeated.",
    ),
    click.option(
        *("--slow-link", "links"),
        type=slow_link,
        metavar="A-B=FACTOR",
        multiple=True,
        help="A link and the factor on its bandwidth, such as 6-7=0.1; 0 or cut cuts it.",
    ),
    click.option("--topology", help=f"{forms()} or a JSON file of links."),
    click.option(
        *("--buffers", "buffers"),
        type=buffers,
        metavar="N|PLAN",
        help="Receive buffers per input that travels.",
    ),
    click.option("--launch", type=click.FloatRange(0), help="Seconds of a kernel's launch."),
)


def scenario_of(given: dict[str, Any]) -> Scenario:
    """Takes the values of `scenario_options` out of `given`, and returns the scenario."""
    file = given.pop("scenario")
    scenario = Scenario() if file is None else scenario_file(file)
    changes = {name: given.pop(name) for name in ("topology", "buffers", "launch")}
    for name in ("speeds", "links"):
        changes[name] = dict(given.pop(name))
    if not given.pop("overlap"):
        changes["overlap"] = False
    return replace(
        scenario, **{name: value for name, value in changes.items() if value not in (None, {})}
    )


def comparison_options(schedules: str | None) -> Callable[[Function], Function]:
    """The options of a comparison, with a command's own schedules; None: all that matter."""
    return grouped(
        workload_options(), hardware_option, schedules_option(schedules), scenario_options
    )


def compared(given: dict[str, Any], **more: Any) -> Comparison:
    """Compare schedules as the options of `comparison_options` say."""
    work, ranks = workload(given)
    chosen = {name: given[name] for name in ("hardware", "schedules", "pass_")}
    return compare(work, ranks, **chosen, scenario=scenario_of(given), track=progress, **more)
