"""Search for the fastest plan for a mask and a machine.

Tries the schedules of compare, then plans built for this mask and machine: blocks cut at the mask's
edges, keys sent only to ranks that use them, rows of busy ranks computed elsewhere. The result is
verified; -o saves it for simulate, run, emit and report.

Example:
  ringloom search --ranks 8 --seq 64k --mask prefix:16k --hardware h100
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ringloom.cli.options import (
    FILE,
    hardware_option,
    memory_option,
    scenario_of,
    scenario_options,
    time_limit_option,
    workload,
    workload_options,
)
from ringloom.cli.output import Whole, console, show
from ringloom.comparison import asked
from ringloom.planner.files import save
from ringloom.planner.layouts import own_name
from ringloom.searching import SearchResult, search
from ringloom.searching.gaps import WORDS, Gap
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.views.tables import faint, plain_table, titled
from ringloom.views.units import counted, in_lines, seconds, size

ROUNDING = 1e-12  # seconds: smaller parts of a gap are not shown


@click.command()
@workload_options()
@hardware_option
@memory_option
@time_limit_option
@click.option("--layout", help="Layout that the tokens already have.  [default: any]")
@click.option(
    "--seed",
    type=Whole(0),
    default=0,
    help="Accepted for scripts; the search uses no random numbers.",
)
@click.option(
    "--budget", type=Whole(0), help="Maximum number of plans built for this mask, per pass."
)
@scenario_options
@click.option("-o", "--output", type=FILE, help="Write the plans to this file.")
def command(
    room: float | None,
    layout: str | None,
    seed: int,
    budget: int | None,
    output: str | None,
    **given: Any,
) -> None:
    more = {} if budget is None else {"budget": budget}
    result = searched({**given}, room, layout=layout and own_name(layout), seed=seed, **more)
    document = result.as_dict()
    if output:
        save(result.plans, output)
        document["output"] = output
    (work, ranks), machine = workload(given), find_hardware(given["hardware"])
    title = asked(work, given["pass_"], ranks, machine.name, scenario_of(given))
    show(document, title, *page(result), text=f"written to {output}" if output else None)


def searched(given: dict[str, Any], room: float | None, **more: Any) -> SearchResult:
    """Searches by the options that `compare` has too, and shows a progress bar."""
    work, ranks = workload(given)
    more |= {name: given[name] for name in ("pass_", "time_limit")}
    more |= {"memory": room, "scenario": scenario_of(given)}
    with progress() as told:
        return search(work, ranks, given["hardware"], told=told, **more)


def tally(result: SearchResult) -> str:
    """Returns how many plans were simulated, pruned and refused."""
    counts = f"{counted(result.tried, 'plan')} simulated, {result.pruned} pruned"
    return f"{counts}, {result.refused} refused" + ", ended early" * (not result.complete)


@contextmanager
def progress() -> Iterator[Callable[[str, float, float], None]]:
    """Shows a bar on a terminal; yields a callback for a candidate, the best time and its gap."""
    terminal = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    shown = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    with shown:
        task = shown.add_task("searching", total=None)

        def told(_: str, best: float, gap: float) -> None:
            line = f"searching: best {seconds(best)}, {gap:.0%} over the bound"
            shown.update(task, description=line, advance=1)

        yield told


def page(result: SearchResult) -> Iterator[Any]:
    """Yields the plans, why they take longer than the bound, and the runner-ups."""
    over, least = f"{result.gap:.0%}", result.least
    kind = "compute and memory" if result.prediction.bound_inapplicable_reason else least.why
    memory = size(result.prediction.peak_bytes)
    both = len({*result.recipes}) > 1
    for plan, recipe in [*zip(result.plans, result.recipes, strict=True)][: 1 + both]:
        yield Text(f"{plan.pass_}: " * both + recipe, "bold green")
    yield titled(
        seconds(result.makespan), f", {over} above the bound of {kind}; at most {memory} per rank"
    )
    for gap in result.why:
        yield gap_table(gap)
    if result.runner_ups:
        table = plain_table("runner-ups", "time", "loses most by")
        table.columns[0].overflow = "fold"  # never cuts off a name that people may type
        for one in result.runner_ups:
            table.add_row(in_lines(one.recipe), seconds(one.makespan), one.lost_by)
        yield table
    yield faint(tally(result))


def gap_table(gap: Gap) -> Any:
    """Returns the time above the bound on the critical rank in parts, the largest first."""
    parts = sorted(gap.parts.items(), key=lambda part: -abs(part[1]))
    rows = [
        (WORDS[name], f"{'-' * (time < 0)}{seconds(abs(time))}")
        for name, time in parts
        if abs(time) > ROUNDING
    ]
    over = seconds(gap.seconds)
    heads = f"{gap.pass_}: rank {gap.rank} ends last, {over} above the bound", "time"
    return plain_table(*heads, rows=rows, numbers=slice(1, None))
