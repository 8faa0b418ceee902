"""Audit any attention function: what it attends and what it sends.

The target is a function attend(q, k, v) on local shards [batch, heads, tokens, head_dim], given
as module:function or file.py:function, including files of `ringloom emit`. The audit starts the
ranks, calls the function with probing inputs and never reads its code. Exit status 0: exact;
1: not exact; 2: it could not run. The function runs with your permissions.

Example:
  ringloom audit ring.py:attend --ranks 4 --seq 64 --layout zigzag
"""

from pathlib import Path
from typing import Any

import click

from ringloom.auditing import PASSES, TIMEOUT
from ringloom.auditing.cases import case_of, layout_of
from ringloom.auditing.page import page
from ringloom.auditing.verdict import Audit
from ringloom.cli.options import FILE, workload, workload_options
from ringloom.cli.output import Number, Whole, show, typed_command, working
from ringloom.planner.disk import write
from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import needing, require
from ringloom.runtimes.audit.case import Case

EACH = "rank", "head"
USUAL = {"heads": "2", "head_dim": "16", "dtype": "float32"}


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@workload_options(without=("sinks", "pass_", "tensor_parallel"), **USUAL)
@click.option(
    "--pass",
    "pass_",
    type=click.Choice(PASSES),
    default="both",
    help="both: also probe gradients.",
)
@click.option(
    "--layout",
    default="contiguous",
    help="A layout name, a .npy or .json file of positions, or detect.",
)
@click.option(
    "--backend",
    type=click.Choice(("torch", "jax")),
    default="torch",
    help="Library of the function.",
)
@click.option("--seed", type=Whole(0), default=0, help="Random seed of the inputs.")
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    default=TIMEOUT,
    help="Seconds after which ranks count as hung.",
)
@click.option("--html", "output", type=FILE, help="Also write an HTML page with pictures.")
@click.option(
    "--each", type=click.Choice(EACH), help="Draw every rank or every head (with --html)."
)
def command(
    target: str,
    pass_: str,
    layout: str,
    backend: str,
    seed: int,
    timeout: float,
    output: str | None,
    each: str | None,
    **given: Any,
) -> int:
    if each and not output:
        raise click.UsageError("--each requires --html FILE")
    module, colon, function = target.rpartition(":")
    if not colon or not module or not function.isidentifier():
        raise click.UsageError(f"{target} is not module:function (example: ring.py:attend)")
    if module.endswith(".py") and not Path(module).is_file():
        raise RingloomError(f"no file {module}")
    work, ranks = workload(given)
    require(backend, backend)
    drawing = needing("report", "ringloom.auditing.html") if output else None
    case = case_of(work, ranks, layout_of(layout), passes=pass_, seed=seed, equal=backend == "jax")
    with working("auditing"):
        audit = audited(target, case, backend, timeout)
    document = audit.as_dict()
    if output and drawing:
        content = drawing.page(audit, each or "", typed_command()).encode()
        write(output, content)
        document["html"] = output
    show(document, page(audit), text=f"{output}: open it in a browser" if output else None)
    if audit.report.could_not_run is not None:
        return 2
    return 0 if audit.exact else 1


def audited(target: str, case: Case, backend: str, timeout: float) -> Audit:
    """Starts the ranks and audits a function on them."""
    from ringloom.runtimes.audit import launch

    return Audit(case, launch(target, case, backend=backend, timeout=timeout), target)
