"""Run a plan on random arrays.

Use --check to compare the result with dense attention, and --trace to record the run.

Example:
  ringloom run burst --ranks 5 --seq 203 --heads 4 --head-dim 16 --check
"""

from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any

import click

from ringloom.cli.options import TRACE, plans_of, source_options
from ringloom.cli.output import Integer, Number, show, working
from ringloom.comparison import describe_request
from ringloom.planner.errors import RingloomError
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.recording import record
from ringloom.runtimes.arrays import draw, draw_sinks
from ringloom.runtimes.backends import BACKENDS, executor, run
from ringloom.runtimes.validation import check
from ringloom.views.tables import titled, verdict
from ringloom.views.units import seconds, size

MAX_SCORES = 4 << 30  # bytes of the dense scores


@click.command()
@source_options(dtype="float64")
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default="numpy",
    help="Library that executes the plan.",
)
@click.option(
    "--check",
    "checked",
    is_flag=True,
    help="Compare the result with dense attention; exit with 1 if they differ.",
)
@click.option("--seed", type=Integer(0), default=0, help="Random seed of the arrays.")
@click.option("--trace", type=TRACE, help="Record the run as a Chrome trace (.json or .json.gz).")
@click.option(
    "--time-limit",
    type=Number(0, min_open=True),
    help="With --backend torch: maximum duration in seconds.  [default: 300]",
)
def command(
    source: str,
    backend: str,
    checked: bool,
    seed: int,
    trace: str | None,
    time_limit: float | None,
    **options: Any,
) -> int:
    plans = plans_of(source, options)
    if time_limit and backend != "torch":
        raise RingloomError(f"--time-limit requires --backend torch, not {backend}")
    limits = {"timeout": time_limit} if time_limit else {}
    refuse_huge(plans.workload)
    document: dict[str, Any] = {"schedule": plans.name, "backend": backend}
    request = describe_request(plans.workload, plans.pass_, plans.ranks)
    title = titled(plans.name, f": {request} on {backend}")
    written = f"recording written to {trace}" if trace else None
    if trace:
        document["trace"] = trace
    if checked:
        if trace:
            run_random(plans, backend, seed, trace, limits)
        with working("running and comparing with dense attention"):
            result = check(plans, backend=partial(executor(backend), **limits), seed=seed)
        show(document | asdict(result), title, verdict(result), text=written)
        return int(not result.exact)
    start = perf_counter()
    with working("running"):
        shapes = run_random(plans, backend, seed, trace, limits)
    document |= {"seconds": perf_counter() - start, "shapes": shapes}
    results = [f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    summary = f"ran in {seconds(document['seconds'])}: {', '.join(results)}"
    show(document, title, f"{summary}; use --check to verify the result", text=written)
    return 0


def run_random(
    plans: Plans, backend: str, seed: int, trace: str | None, limits: dict[str, float]
) -> dict[str, list[int]]:
    """Runs a plan on random arrays and returns the shapes of the results by name.

    `trace`: file for a recording of the run. `limits`: options of the backend.
    """
    forward_only = plans.backward is None
    q, k, v, dout = draw(plans.workload, seed)
    arrays: dict[str, Any] = {"dout": None if forward_only else dout}
    arrays["sinks"] = draw_sinks(plans.workload, seed)
    if trace is None:
        outputs = run(plans, q, k, v, backend=partial(executor(backend), **limits), **arrays)
    else:
        outputs, recording = record(plans, q, k, v, backend=backend, **limits, **arrays)
        recording.save(trace)
    results = (outputs,) if forward_only else outputs
    names = ("out", "dq", "dk", "dv", "dsinks")
    return {name: list(x.shape) for name, x in zip(names, results, strict=False)}


def refuse_huge(work: Workload) -> None:
    """Raises RingloomError if dense scores of heads x seq x kv_seq exceed `MAX_SCORES` bytes."""
    scores = work.batch * work.heads * work.seq * work.kv_seq * 8
    if scores > MAX_SCORES:
        raise RingloomError(
            f"{work.seq} x {work.kv_seq} tokens and {work.heads} heads need {size(scores)} of dense"
            f" scores; the limit is {size(MAX_SCORES)}: use a smaller --seq"
            " (verifying a plan has no such limit)"
        )
