"""Run a plan on random arrays, compare it and record it.

--check compares it with dense attention, --trace records it.

Example:
  ringloom run burst --ranks 5 --seq 203 --heads 4 --head-dim 16 --check
"""

from dataclasses import asdict
from time import perf_counter
from typing import Any

import click

from planner.ir import Plan
from ringloom.cli.options import plans_of, source_options
from ringloom.cli.output import show
from ringloom.cli.progress import working
from ringloom.running import refuse_huge, run_random
from ringloom.views.tables import verdict
from ringloom.views.units import seconds
from runtimes.backends import BACKENDS
from runtimes.validation import check


@click.command()
@source_options(dtype="float64")
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default="numpy",
    help="What executes it.",
)
@click.option("--check", "checked", is_flag=True, help="Compare with dense attention; 1 if wrong.")
@click.option("--seed", type=int, default=0, help="Of the random arrays.")
@click.option("--trace", "trace_file", help="Record the run: a Chrome trace, .json or .json.gz.")
def command(
    source: str,
    backend: str,
    checked: bool,
    seed: int,
    trace_file: str | None,
    **given: Any,
) -> int:
    plans = plans_of(source, given)
    refuse_huge(plans.workload)
    document: dict[str, Any] = {"schedule": plans.name, "backend": backend}
    head = f"[bold]{_headline(plans.first)}[/]"
    if trace_file:
        document["trace"] = trace_file
    if checked:
        if trace_file:
            run_random(plans, backend, seed, trace_file)
        with working("running and comparing with dense attention"):
            result = check(plans, backend=backend, seed=seed)
        show(document | asdict(result), head, verdict(result))
        return int(not result.exact)
    began = perf_counter()
    with working("running"):
        shapes = run_random(plans, backend, seed, trace_file)
    document |= {"seconds": perf_counter() - began, "shapes": shapes}
    results = [f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    took = seconds(document["seconds"])
    written = [f"recorded in {trace_file}"] if trace_file else []
    ran = f"ran in {took}: {', '.join(results)}; --check verifies the result"
    show(document, head, ran, *written)
    return 0


def _headline(plan: Plan) -> str:
    work = plan.workload
    return f"{plan.name}, {plan.ranks} ranks, {work.seq} tokens, {work.mask}, {work.dtype}"
