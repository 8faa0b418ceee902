"""Search for the fastest plan for a mask and a machine.

The search tries the schedules of compare, then builds plans for this mask and machine. Such plans
cut blocks at the edges of the mask, send keys only to ranks that use them, and move rows from busy
ranks to other ranks. The result is verified. Use -o to save it for simulate, run, emit and report.

Example:
  ringloom search --ranks 8 --seq 64k --mask prefix:16k --hardware h100
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import MofNCompleteColumn
from rich.text import Text

from ringloom.cli.options import (
    FILE,
    hardware_option,
    memory_option,
    pop_scenario,
    scenario_options,
    time_limit_option,
    workload,
    workload_options,
)
from ringloom.cli.output import Integer, progress_bar, show
from ringloom.comparison import describe_request
from ringloom.planner.files import save
from ringloom.searching import SearchResult, search
from ringloom.searching.gaps import LABELS, Gap
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.views.tables import faint, plain_table, titled
from ringloom.views.units import counted, in_lines, seconds, size

MIN_PART = 1e-12  # seconds of the smallest part of a gap that is shown


@click.command()
@workload_options()
@hardware_option
@memory_option
@time_limit_option
@click.option("--layout", help="Layout that the tokens already have.  [default: any layout]")
@click.option(
    "--seed",
    type=Integer(0),
    default=0,
    help="Accepted for scripts; the search uses no random numbers.",
)
@click.option(
    "--budget",
    type=Integer(0),
    help="Maximum number of plans to build for this mask, per pass.",
)
@scenario_options
@click.option("-o", "--output", type=FILE, help="Write the plans to this file.")
def command(
    memory_limit: float | None,
    layout: str | None,
    seed: int,
    budget: int | None,
    output: str | None,
    **options: Any,
) -> None:
    settings: dict[str, Any] = {"layout": layout, "seed": seed}
    settings |= {} if budget is None else {"budget": budget}
    result = run_search({**options}, memory_limit, **settings)
    document = result.as_dict()
    if output:
        save(result.plans, output)
        document["output"] = output
    (work, ranks), machine = workload(options), find_hardware(options["hardware"])
    title = describe_request(work, options["pass_"], ranks, machine.name, pop_scenario(options))
    show(document, title, *page(result), text=f"written to {output}" if output else None)


def run_search(
    options: dict[str, Any], memory_limit: float | None, **settings: Any
) -> SearchResult:
    """Searches with the options that `compare` has too; shows a progress bar."""
    work, ranks = workload(options)
    settings |= {name: options[name] for name in ("pass_", "time_limit")}
    settings |= {"memory": memory_limit, "scenario": pop_scenario(options)}
    with search_progress() as report:
        return search(work, ranks, options["hardware"], report=report, **settings)


def tally(result: SearchResult) -> str:
    """Returns the numbers of simulated, pruned and refused plans in words."""
    counts = f"{counted(result.tried, 'plan')} simulated, {result.pruned} pruned"
    return f"{counts}, {result.refused} refused" + ", stopped by the time limit" * (
        not result.complete
    )


@contextmanager
def search_progress() -> Iterator[Callable[[str, float, float], None]]:
    """Shows a progress bar; yields a callback for a candidate, the best time and its gap."""
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("searching", total=None)

        def report(_: str, best: float, gap: float) -> None:
            line = f"searching: best {seconds(best)}, {gap:.0%} above the bound"
            bar.update(task, description=line, advance=1)

        yield report


def page(result: SearchResult) -> Iterator[Any]:
    """Yields the plans, the reasons for their time above the bound, and the runners-up."""
    bound = result.applicable_bound
    kind = "compute and memory" if result.prediction.bound_inapplicable_reason else bound.why
    memory = size(result.prediction.peak_bytes)
    has_two = len({*result.recipes}) > 1
    for plan, recipe in [*zip(result.plans, result.recipes, strict=True)][: 1 + has_two]:
        yield Text(f"{plan.pass_}: " * has_two + recipe, "bold green")
    yield titled(
        seconds(result.makespan),
        f", {result.gap:.0%} above the lower bound of {kind}; peak memory {memory} per rank",
    )
    for gap in result.why:
        yield gap_table(gap)
    if result.runner_ups:
        table = plain_table("runners-up", "time", "main loss")
        table.columns[0].overflow = "fold"  # so that names can be copied
        for plans in result.runner_ups:
            table.add_row(in_lines(plans.recipe), seconds(plans.makespan), plans.lost_by)
        yield table
    yield faint(tally(result))


def gap_table(gap: Gap) -> Any:
    """Returns the parts of the time above the bound on the critical rank, the largest first."""
    parts = sorted(gap.parts.items(), key=lambda part: -abs(part[1]))
    rows = [
        (LABELS[name], f"{'-' * (time < 0)}{seconds(abs(time))}")
        for name, time in parts
        if abs(time) > MIN_PART
    ]
    title = f"{gap.pass_}: rank {gap.rank} ends last, {seconds(gap.seconds)} above the bound"
    return plain_table(title, "time", rows=rows, numbers=slice(1, None))
