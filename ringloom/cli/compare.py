"""Compare schedules on your hardware and recommend one.

Every plan is verified at full size and simulated; --check also executes a small version.

Example:
  ringloom compare --ranks 8 --seq 256k --kv-heads 8 --hardware h100
"""

from dataclasses import asdict
from typing import Any

import click

from ringloom.cli.options import compared, comparison_options, memory_option
from ringloom.cli.output import console, csv_option, show
from ringloom.cli.search import searched, tally
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
    "searching",
    is_flag=True,
    help="Also search for a plan; --time-limit applies to each of the two.",
)
@memory_option
@csv_option
def command(checked: bool, searching: bool, room: float | None, **given: Any) -> int:
    result = searched({**given}, room) if searching else None
    comparison = compared(given, checked=checked, memory=room, plans=result and result.plans)
    rows, advice = comparison.rows, comparison.recommendation
    notes = [
        "* fastest (ties: fewest bytes, then least memory), ~ too close to call",
        "predicted: time, idle, exposed communication, memory, multiple of lower bound",
        f"verified: every plan at the full length of {lengths(comparison.work)}",
    ]
    if comparison.tried:
        said = f"{comparison.tried} more settings tried, {comparison.pruned} skipped as too slow"
        notes.append(f"{said}; the best of each schedule is listed")
    tried, skipped = comparison.split_tried, comparison.split_skipped
    if tried:
        said = f"tried on {tried} of {tried + skipped} schedules"
        notes.append(f"--trim blocks: {said}, listed where it saves 10% or more")
    if comparison.grouped_tried:
        said = f"--by-rows: tried on {counted(comparison.grouped_tried, 'schedule')}"
        notes.append(f"{said}, listed where it saves 10% or more")
    if result:
        notes.append(f"search: {tally(result)}")
    if checked and (executed := next((row.exact_seq for row in rows if row.exact_seq), None)):
        said = f"checked: on {counted(executed, 'token', length)} in float64 (small head_dim)"
        notes.append(f"{said}; ok = max error below 1e-12")
    elif checked:
        notes.append("checked: nothing; the mask fits only this length, which is slow to execute")
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
