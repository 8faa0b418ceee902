"""The command line: every command takes --json, exits 0, 2 on bad input, 1 on a failed check."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

import click
from rich.console import Console

from planner.analysis.balance import imbalance
from planner.errors import PlanError
from planner.files import save
from planner.ir import SMALL, Plan
from planner.schedules import SCHEDULES
from ringloom import __version__, drawing
from ringloom.calibrating import calibrate_command, fit_command
from ringloom.comparison import compare as compare_schedules
from ringloom.comparison import why
from ringloom.explore.command import explore
from ringloom.figures.command import figures
from ringloom.looping import Looped, looped
from ringloom.options import (
    Plans,
    listed,
    plans_of,
    trim_option,
    workload,
    workload_options,
)
from ringloom.output import json_option, show
from ringloom.programs import check as check_program
from ringloom.programs import emit, tables
from ringloom.progress import progress, working
from ringloom.report.command import report
from ringloom.reproduce.command import reproduce
from ringloom.reproduce.formula_command import formula
from ringloom.running import refuse_huge, run_random
from ringloom.simulating import (
    condition_options,
    conditions,
    path_picture,
    path_rows,
    paths,
    write_trace,
)
from runtimes.backends import RUNTIMES, RankError
from runtimes.validation import check
from simulator.critical_path import Leg
from simulator.hardware import hardware as find_hardware
from simulator.prediction import Prediction, simulate

hardware_option = click.option(
    "--hardware", default="a100-nvlink", show_default=True, help="A preset or a TOML/JSON file."
)
overlap_option = click.option(
    "--overlap/--no-overlap", default=True, help="Whether transfers run beside compute."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, prog_name="ringloom")
def cli() -> None:
    """Plan distributed attention, verify it, predict it, run it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status, with bad input told in one line on stderr."""
    try:
        return int(cli.main(arguments, prog_name="ringloom", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message(), err=True)
    except click.ClickException as error:
        click.echo(f"ringloom: {' '.join(error.format_message().split())}", err=True)
    except PlanError as error:
        click.echo(f"ringloom: {' '.join(str(error).split())}", err=True)
    except RankError as error:  # its lines are a traceback: of the rank, not of the command
        click.echo(f"ringloom: {error}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 2


@cli.command()
@json_option
def schedules(as_json: bool) -> None:
    """What schedules there are, what travels in them, who published them."""
    rows = [
        {
            "name": s.name,
            "passes": ["forward", "backward"],
            "travels": s.travels,
            "path": s.path,
            "paper": s.paper,
            "parameters": s.parameters,
        }
        for s in SCHEDULES.values()
    ]
    table = drawing.plain_table("schedule", "travels", "parameters", "from")
    for s in SCHEDULES.values():
        table.add_row(s.name, s.travels, " ".join(s.parameters) or "-", s.paper)
    show(as_json, {"schedules": rows}, table)


@cli.command()
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options()
@trim_option
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the plan file.")
@json_option
def plan(source: str, output: str | None, as_json: bool, **given: Any) -> None:
    """Draw who attends what when, print its loops, verify it, and write it to a file."""
    plans = plans_of(source, given)
    if output:
        _write(plans, output)
    with working("reading the loops"):
        forms = [(p, looped(p)) for p in listed(plans)]
    pictures = [picture for form in forms for picture in _portrait(*form)]
    written = [f"written to {output}"] if output else []
    document = {"plans": [_summary(*form) for form in forms], "verified": True}
    show(as_json, document, *pictures, *written)


def _write(plans: Plans, output: str) -> None:
    try:
        save(plans, output)
    except OSError as error:
        raise PlanError(f"cannot write {output}: {error.strerror}") from None


def _portrait(plan: Plan, form: Looped) -> list[Any]:
    head = (
        f"[bold]{plan.name}[/] {plan.pass_}, {plan.workload.mask}, {plan.ranks} ranks x"
        f" {drawing.length(plan.workload.seq)} tokens, {plan.rounds} rounds,"
        f" imbalance {imbalance(plan):.2f}, verified exact"
    )
    where = f"layout: {drawing.layout(plan)}"
    legend = "[dim]cells: q blocks,kv blocks; ◣ partly masked; · no work[/]"
    console = Console()
    pictures = drawing.grid(plan, console.width), legend, *drawing.load_bars(plan, console)
    return [head, where, *pictures, drawing.traffic(plan), "", drawing.loops(form), ""]


def _summary(plan: Plan, form: Looped) -> dict[str, Any]:
    work = plan.workload
    grid = [
        [int(r), [int(b) for b in q if b >= 0], [int(b) for b in kv if b >= 0]]
        for step in plan.steps
        for attend in step.attends
        for r, q, kv in zip(attend.rank, attend.q, attend.kv, strict=True)
    ]
    rounds = [sum(len(a) for a in step.attends) for step in plan.steps]
    return {
        "name": plan.name,
        "pass": plan.pass_,
        "ranks": plan.ranks,
        "seq": work.seq,
        "kv_seq": work.kv_seq,
        "mask": str(work.mask),
        "layout": drawing.layout(plan),
        "steps": len(plan.steps),
        "rounds": plan.rounds,
        "imbalance": imbalance(plan),
        "travels": [
            {"tensor": t, "messages": n, "bytes": int(sent.sum()), "max_bytes": int(sent.max())}
            for t, n, sent in drawing.messages(plan)
        ],
        "attends_per_step": rounds,
        "grid": grid if plan.rows <= SMALL else None,
        **form.as_dict(),
    }


@cli.command()
@workload_options()
@hardware_option
@click.option("--schedules", default=",".join(SCHEDULES), help="Which, separated by commas.")
@overlap_option
@click.option("--check", "checked", is_flag=True, help="Run each on real arrays, 64 tokens a rank.")
@json_option
def compare(
    hardware: str, schedules: str, overlap: bool, checked: bool, as_json: bool, **given: Any
) -> int:
    """Schedules side by side: verified at full size, predicted, and run small with --check."""
    work, ranks = workload(given)
    machine = find_hardware(hardware)
    chosen = [name.strip() for name in schedules.split(",") if name.strip()]
    if not chosen:
        raise click.UsageError("--schedules names none")
    rows = compare_schedules(
        work,
        ranks,
        machine,
        chosen,
        pass_=given["pass_"],
        overlap=overlap,
        checked=checked,
        track=progress,
    )
    title = (
        f"{given['pass_']} of {drawing.length(work.seq)} tokens, {work.mask}, {work.heads} heads"
        f" of {work.head_dim}, {work.dtype}, {ranks} ranks of {hardware}"
    )
    notes = (
        "[dim]predicted: time, idle, exposed transfers, memory, and time over the lower bound of"
        " all plans;\nverified: the plan passed the verifier at that length"
    )
    if checked:
        notes += ";\nran: on real arrays of that length (float64, narrow heads), ok within 1e-12"
    notes += "[/]"
    document = {"rows": [row.as_dict() for row in rows], "why": why(rows)}
    table, bars = drawing.comparison(rows, checked), drawing.bars(rows, Console())
    show(as_json, document, title, table, *bars, notes, why(rows))
    return int(any(row.exact is False for row in rows))


@cli.command(name="simulate")
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options()
@trim_option
@hardware_option
@overlap_option
@condition_options
@click.option("--trace", "trace_file", help="Write a Chrome trace, .json or .json.gz.")
@json_option
def simulate_command(
    source: str,
    hardware: str,
    overlap: bool,
    trace_file: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict one plan: time, idle share, exposed transfers, bytes, memory, bounds."""
    under = conditions(given)
    plans, record = plans_of(source, given), True if trace_file else None
    with working("simulating"):
        found = simulate(plans, find_hardware(hardware), overlap=overlap, record=record, **under)
    legs, head = paths(found), f"[bold]{listed(plans)[0].name}[/] on {hardware}"
    written = [write_trace(found, trace_file)] if trace_file else []
    pictures = drawing.prediction(found), *map(path_picture, legs), *written
    show(as_json, _prediction(plans, found, legs), head, *pictures)


def _prediction(plans: Plans, found: Prediction, legs: list[tuple[Leg, ...]]) -> dict[str, Any]:
    return {
        "schedule": listed(plans)[0].name,
        **found.as_row(),
        "engine": found.engine,
        "contended": found.contended,
        "critical_path": [row for path in legs for row in path_rows(path)] if legs else None,
    }


@cli.command()
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options(dtype="float64")
@trim_option
@click.option("--backend", type=click.Choice(list(RUNTIMES)), default="numpy", show_default=True)
@click.option("--check", "checked", is_flag=True, help="Compare with dense attention; 1 if wrong.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--trace", "trace_file", help="Record the run: a Chrome trace, .json or .json.gz.")
@json_option
def run(
    source: str,
    backend: str,
    checked: bool,
    seed: int,
    trace_file: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run a plan on random arrays; --check judges it, --trace records what each rank does when."""
    plans = plans_of(source, given)
    refuse_huge(listed(plans)[0].workload)
    document: dict[str, Any] = {"schedule": listed(plans)[0].name, "backend": backend}
    head = f"[bold]{_headline(listed(plans)[0])}[/]"
    if trace_file:
        document["trace"] = trace_file
    if checked:
        if trace_file:
            run_random(plans, backend, seed, trace_file)
        with working("running and comparing with dense attention"):
            found = check(plans, backend=backend, seed=seed)
        show(as_json, document | asdict(found), head, drawing.verdict(found))
        return int(not found.exact)
    began = perf_counter()
    with working("running"):
        shapes = run_random(plans, backend, seed, trace_file)
    document |= {"seconds": perf_counter() - began, "shapes": shapes}
    said = [f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    took = drawing.seconds(document["seconds"])
    written = [f"recorded in {trace_file}"] if trace_file else []
    ran = f"ran in {took}: {', '.join(said)}; --check judges the result"
    show(as_json, document, head, ran, *written)
    return 0


def _headline(plan: Plan) -> str:
    work = plan.workload
    return f"{plan.name}, {plan.ranks} ranks, {work.seq} tokens, {work.mask}, {work.dtype}"


cli.add_command(emit)
cli.add_command(tables)
cli.add_command(check_program)
cli.add_command(report)
cli.add_command(figures)
cli.add_command(explore)
cli.add_command(reproduce)
cli.add_command(formula)
cli.add_command(calibrate_command)
cli.add_command(fit_command)


if __name__ == "__main__":
    sys.exit(main())
