"""Compare schedules on one HTML page with pictures.

The page shows timelines, load, memory and traffic step by step, and works offline. A plan file,
such as a result of `ringloom search`, is compared with schedules for its workload.

Example:
  ringloom report --ranks 8 --seq 256k --heads 32 --kv-heads 8 -o report.html
"""

from importlib import import_module
from typing import Any

import click

from ringloom.cli.options import FILE, compare_schedules, comparison_options
from ringloom.cli.output import show, typed_command, working
from ringloom.planner.disk import write
from ringloom.planner.optional import import_optional

MAX_SCHEDULES = 5  # schedules to compare when none are named


@click.command()
@click.argument("source", metavar="[PLAN.json]", type=click.Path(exists=True), required=False)
@comparison_options(MAX_SCHEDULES)
@click.option(
    "--run", "trace", help="Recording of a run (.json or .json.gz) to overlay on its prediction."
)
@click.option("--all-ranks", is_flag=True, help="Draw the timelines of all ranks, not just 16.")
@click.option("-o", "--output", type=FILE, default="report.html", help="Output file.")
def command(
    source: str | None, trace: str | None, all_ranks: bool, output: str, **options: Any
) -> None:
    page = import_optional("report", "ringloom.report.page")
    run = import_module("ringloom.report.facts.recorded").recorded(trace) if trace else None
    comparison = compare_schedules(options, MAX_SCHEDULES, source)
    with working("drawing"):
        content = page.page(comparison, run, typed_command(source or ""), all_ranks)
    write(output, content.encode())
    document = {
        "file": output,
        "bytes": len(content.encode()),
        "finding": comparison.why,
        "rows": comparison.as_rows(),
        "order_validated": not comparison.unvalidated,
        "measured_s": run.makespan if run else None,
    }
    answer = comparison.recommendation.answer
    show(document, answer, comparison.why, text=f"{output}: open it in a browser")
