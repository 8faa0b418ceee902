"""Schedules compared on one HTML page: what happens when, where and why."""

from importlib import import_module
from typing import Any

import click

from ringloom.cli.options import (
    hardware_option,
    overlap_option,
    schedules_option,
    workload,
    workload_options,
)
from ringloom.cli.output import json_option, show, write
from ringloom.cli.progress import progress, working
from ringloom.comparison import compare
from ringloom.optional import needing


@click.command(help=__doc__)
@workload_options()
@hardware_option
@schedules_option("ring,striped,zigzag,balanced,burst")
@overlap_option
@click.option(
    "--run", "trace", help="A recorded run (.json or .json.gz) to lay over its prediction."
)
@click.option("-o", "--output", default="report.html", show_default=True, help="The page.")
@json_option
def command(
    hardware: str,
    schedules: list[str],
    overlap: bool,
    trace: str | None,
    output: str,
    as_json: bool,
    **given: Any,
) -> None:
    page = needing("report", "ringloom.report.page")
    work, ranks = workload(given)
    run = import_module("ringloom.report.recorded").recorded(trace) if trace else None
    compared = compare(
        work,
        ranks,
        hardware,
        schedules,
        pass_=given["pass_"],
        overlap=overlap,
        variants=False,
        track=progress,
    )
    with working("drawing"):
        content = page.page(compared, run)
    write(output, content)
    document = {
        "file": output,
        "bytes": len(content.encode()),
        "finding": compared.why,
        "rows": [row.as_dict() for row in compared.rows],
        "measured_s": run.makespan if run else None,
    }
    show(as_json, document, compared.why, f"{output} shows why: open it in a browser")
