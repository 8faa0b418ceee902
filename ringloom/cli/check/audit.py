"""Audit any attention function: pairs attended and bytes sent.

The target is a function attend(q, k, v) of local shards [batch, heads, tokens, head_dim]. Name it
as module:function or file.py:function; files from `ringloom emit` work too. The audit starts the
ranks and calls the function with probe inputs; it never reads the code. The exit status is 0 if
the function is exact, 1 if it is not, and 2 if it could not run. The function runs with your
permissions.

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
from ringloom.cli.output import Integer, Number, show, typed_command, working
from ringloom.planner.disk import write
from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import import_optional, require_library
from ringloom.runtimes.audit.case import Case

DEFAULTS = {"heads": "2", "head_dim": "16", "dtype": "float32"}


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@workload_options(omit=("sinks", "pass_", "tensor_parallel"), **DEFAULTS)
@click.option(
    "--pass",
    "pass_",
    type=click.Choice(PASSES),
    default="both",
    help="Passes to audit; both includes gradients.",
)
@click.option(
    "--layout",
    default="contiguous",
    help="Layout name, .npy or .json file of positions, or detect.",
)
@click.option(
    "--backend",
    type=click.Choice(("torch", "jax")),
    default="torch",
    help="Library that the function uses.",
)
@click.option("--seed", type=Integer(0), default=0, help="Random seed of the inputs.")
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    default=TIMEOUT,
    help="Maximum seconds that ranks wait for each other.",
)
@click.option("--html", "output", type=FILE, help="Also write an HTML page with pictures.")
@click.option(
    "--each",
    type=click.Choice(("rank", "head")),
    help="With --html: draw every rank or every head.",
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
    **options: Any,
) -> int:
    if each and not output:
        raise click.UsageError("--each requires --html FILE")
    module, _, function = target.rpartition(":")
    if not module or not function.isidentifier():
        raise click.UsageError(f"{target} is not module:function (example: ring.py:attend)")
    if module.endswith(".py") and not Path(module).is_file():
        raise RingloomError(f"no file {module}")
    work, ranks = workload(options)
    require_library(backend, backend)
    html = import_optional("report", "ringloom.auditing.html") if output else None
    case = case_of(work, ranks, layout_of(layout), passes=pass_, seed=seed, equal=backend == "jax")
    with working("auditing"):
        audit = run_audit(target, case, backend, timeout)
    document = audit.as_dict()
    if output and html:
        write(output, html.page(audit, each or "", typed_command()).encode())
        document["html"] = output
    show(document, page(audit), text=f"{output}: open it in a browser" if output else None)
    if audit.report.could_not_run is not None:
        return 2
    return 0 if audit.exact else 1


def run_audit(target: str, case: Case, backend: str, timeout: float) -> Audit:
    """Starts the ranks and audits a function on them."""
    from ringloom.runtimes.audit import launch

    return Audit(case, launch(target, case, backend=backend, timeout=timeout), target)
