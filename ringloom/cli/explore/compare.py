"""Compare schedules on your hardware and recommend one.

Every plan is verified at full size and simulated. With --check, a small version is also executed.

Example:
  ringloom compare --ranks 8 --seq 256k --kv-heads 8 --hardware h100
"""

from dataclasses import asdict
from typing import Any

import click

from ringloom.cli.explore.search import run_search, tally
from ringloom.cli.options import compare_schedules, comparison_options, memory_option
from ringloom.cli.output import console, csv_option, show
from ringloom.comparison import lengths
from ringloom.simulator.confidence import basis
from ringloom.views.tables import bars, comparison_table, faint
from ringloom.views.units import counted, length


@click.command()
@comparison_options()
@click.option(
    "--check",
    "checked",
    is_flag=True,
    help="Also execute each schedule numerically (64 tokens per rank).",
)
@click.option(
    "--search",
    "with_search",
    is_flag=True,
    help="Also search for a plan; --time-limit applies to the search separately.",
)
@memory_option
@csv_option
def command(checked: bool, with_search: bool, memory_limit: float | None, **options: Any) -> int:
    result = run_search({**options}, memory_limit) if with_search else None
    plans = result and result.plans
    comparison = compare_schedules(options, checked=checked, memory=memory_limit, plans=plans)
    rows, advice = comparison.rows, comparison.recommendation
    notes = [
        "* fastest (ties: fewest bytes, then least memory), ~ too close to call",
        "predicted: time, idle, exposed communication, memory, multiple of lower bound",
        f"verified: every plan at the full length of {lengths(comparison.work)}",
    ]
    if comparison.tried:
        counts = f"{comparison.tried} more settings tried, {comparison.pruned} skipped as too slow"
        notes.append(f"{counts}; the best of each schedule is listed")
    tried, skipped = comparison.split_tried, comparison.split_skipped
    if tried:
        counts = f"tried on {tried} of {tried + skipped} schedules"
        notes.append(f"--trim blocks: {counts}, listed if it saves 10% or more")
    if comparison.grouped_tried:
        counts = f"tried on {counted(comparison.grouped_tried, 'schedule')}"
        notes.append(f"--by-rows: {counts}, listed if it saves 10% or more")
    if result:
        notes.append(f"search: {tally(result)}")
    if checked and (seq := next((row.exact_seq for row in rows if row.exact_seq), None)):
        size = f"{counted(seq, 'token', length)} in float64 (small head_dim)"
        notes.append(f"checked: on {size}; ok = max error below 1e-12")
    elif checked:
        notes.append("checked: no plan; the mask fits only this length, which is slow to execute")
    document: dict[str, Any] = {
        "rows": comparison.as_rows(),
        "recommendation": asdict(advice),
        "order_validated": not comparison.unvalidated,
        "interval_basis": basis(comparison.hardware, comparison.pass_).as_dict(),
        "why": comparison.why,
        "variants": {"tried": comparison.tried, "pruned": comparison.pruned},
        "by_rows": {"tried": comparison.grouped_tried},
        "split": {"tried": tried, "skipped": skipped},
        "search": result and result.as_dict(),
    }
    table = comparison_table(rows, checked, comparison.refused)
    pictures = [table, *bars(rows, console()), *map(faint, notes)]
    show(document, comparison.title, *pictures, advice.reason, rows=document["rows"])
    return int(any(row.exact is False for row in rows))
