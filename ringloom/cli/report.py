"""Schedules compared on one HTML page: what happens when, where and why."""

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from planner.errors import PlanError
from ringloom.cli.options import workload, workload_options
from ringloom.cli.output import json_option, show
from ringloom.cli.progress import progress, working
from ringloom.comparison import compare
from ringloom.optional import needing

DEFAULT = "ring,striped,zigzag,balanced,burst"


@click.command(help=__doc__)
@workload_options()
@click.option("--hardware", default="a100-nvlink", show_default=True, help="A preset or a file.")
@click.option("--schedules", default=DEFAULT, show_default=True, help="Separated by commas.")
@click.option("--overlap/--no-overlap", default=True, help="Whether transfers run beside compute.")
@click.option(
    "--run", "trace", help="A recorded run (.json or .json.gz) to lay over its prediction."
)
@click.option("-o", "--output", default="report.html", show_default=True, help="The page.")
@json_option
def command(
    hardware: str,
    schedules: str,
    overlap: bool,
    trace: str | None,
    output: str,
    as_json: bool,
    **given: Any,
) -> None:
    page = needing("report", "ringloom.report.page")
    work, ranks = workload(given)
    if not (names := [name.strip() for name in schedules.split(",") if name.strip()]):
        raise click.UsageError("--schedules names none")
    run = None
    if trace:
        run = import_module("ringloom.report.recorded").recorded(trace)
    compared = compare(
        work,
        ranks,
        hardware,
        names,
        pass_=given["pass_"],
        overlap=overlap,
        variants=False,
        track=progress,
    )
    with working("drawing"):
        content = page.page(compared, run)
    try:
        Path(output).write_text(content, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot write {output}: {error.strerror}") from None
    document = {
        "file": output,
        "bytes": len(content.encode()),
        "finding": compared.why,
        "rows": [row.as_dict() for row in compared.rows],
        "measured_s": run.makespan if run else None,
    }
    show(as_json, document, compared.why, f"{output} shows why: open it in a browser")
