"""Search the best plan for a mask and a machine.

Tries the schedules that compare tries, then plans made for this mask and machine: pieces cut at the
mask's edges, keys sent only to ranks that see them, rows of busy ranks run elsewhere. What is found
is verified; -o saves it for simulate, run, emit and report.

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

ROUNDING = 1e-12  # seconds, below which a part of a gap is none


@click.command()
@workload_options()
@hardware_option
@memory_option
@time_limit_option
@click.option("--layout", help="The layout that tokens already have.  [default: any]")
@click.option("--seed", type=Whole(0), default=0, help="Nothing is drawn: any finds the same.")
@click.option("--budget", type=Whole(0), help="Most plans that are made for this mask, per pass.")
@scenario_options
@click.option("-o", "--output", type=FILE, help="Write the plans that were found to a file.")
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
    show(document, title, *page(result), text=f"{output}: saved" if output else None)


def searched(given: dict[str, Any], room: float | None, **more: Any) -> SearchResult:
    """Search as options say that `compare` has, too; shows a bar meanwhile."""
    work, ranks = workload(given)
    more |= {name: given[name] for name in ("pass_", "time_limit")}
    more |= {"memory": room, "scenario": scenario_of(given)}
    with progress() as told:
        return search(work, ranks, given["hardware"], told=told, **more)


def tally(result: SearchResult) -> str:
    """Returns the numbers of plans that were tried, by what became of them."""
    counts = f"{counted(result.tried, 'plan')} simulated, {result.pruned} pruned"
    return f"{counts}, {result.refused} refused" + ", ended early" * (not result.complete)


@contextmanager
def progress() -> Iterator[Callable[[str, float, float], None]]:
    """A bar on a terminal's stderr; yields what is told a candidate, the best time, its gap."""
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
    """Yields the plans, how far they are from the bound and why, and the runner-ups."""
    over, least = f"{result.gap:.0%}", result.least
    kind = "compute and memory" if result.prediction.bound_inapplicable_reason else least.why
    memory = size(result.prediction.peak_bytes)
    both = len({*result.recipes}) > 1
    for plan, recipe in [*zip(result.plans, result.recipes, strict=True)][: 1 + both]:
        yield Text(f"{plan.pass_}: " * both + recipe, "bold green")
    yield titled(
        seconds(result.makespan), f", {over} over the bound of {kind}; {memory} on a rank at most"
    )
    for gap in result.why:
        yield gap_table(gap)
    if result.runner_ups:
        table = plain_table("the best of other schedules", "time", "loses most by")
        table.columns[0].overflow = "fold"  # names are to be typed: none is cut off
        for one in result.runner_ups:
            table.add_row(in_lines(one.recipe), seconds(one.makespan), one.lost_by)
        yield table
    yield faint(tally(result))


def gap_table(gap: Gap) -> Any:
    """Where the time over the bound goes on the critical rank, the largest part first."""
    parts = sorted(gap.parts.items(), key=lambda part: -abs(part[1]))
    rows = [
        (WORDS[name], f"{'-' * (time < 0)}{seconds(abs(time))}")
        for name, time in parts
        if abs(time) > ROUNDING
    ]
    over = seconds(gap.seconds)
    heads = f"{gap.pass_}: why rank {gap.rank}, the last, ends {over} over the bound", "time"
    return plain_table(*heads, rows=rows, numbers=slice(1, None))
