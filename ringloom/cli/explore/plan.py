"""Draw a verified plan step by step and print its loops.

Example:
  ringloom plan balanced --ranks 8 --seq 256k --kv-heads 8 -o plan.json
"""

from typing import Any

import click

from ringloom.cli.options import FILE, plans_of, source_options
from ringloom.cli.output import console, show, working
from ringloom.comparison import describe_request
from ringloom.planner.analysis.balance import imbalance
from ringloom.planner.errors import PlanError
from ringloom.planner.files import save
from ringloom.planner.ir import Plan
from ringloom.planner.layouts import names
from ringloom.planner.loops import recover
from ringloom.views import tables
from ringloom.views.grids import cells, grid, legend
from ringloom.views.pseudo_code import pseudo_code
from ringloom.views.units import SHOWN, both_ends, counted

MAX_JSON_ROWS = 4000  # rows of the largest plan whose cells are in the JSON object


@click.command()
@source_options()
@click.option("-o", "--output", type=FILE, help="Also write the plan to this file.")
def command(source: str, output: str | None, **options: Any) -> None:
    plans = plans_of(source, options)
    if output:
        save(plans, output)
    with working("recovering the loops"):
        described = [(p, _summary(p), *_loops(p)) for p in plans]
    pictures = [x for p, summary, text, _ in described for x in _pictures(p, summary, text)]
    summaries = [summary | loops for _, summary, _, loops in described]
    note = f"written to {output}" if output else None
    show({"plans": summaries, "verified": True}, *pictures, text=note)


def _pictures(plan: Plan, summary: dict[str, Any], loops: str) -> list[Any]:
    """Returns the title, layout, grid, loads, traffic and loops of a plan for the terminal."""
    request = describe_request(plan.workload, plan.pass_, plan.ranks)
    numbers = f"{counted(plan.rounds, 'round')}, imbalance {summary['imbalance']:.2f}"
    title = tables.titled(plan.name, f": {request}; {numbers}, verified exact")
    terminal, traffic = console(), tables.traffic(summary["travels"])
    pictures = grid(plan, terminal.width), legend(plan), *tables.load_bars(plan, terminal)
    layout = f"layout: {summary['layout']}"
    return [title, layout, *pictures, traffic, "", tables.wrapped(loops), ""]


def _summary(plan: Plan) -> dict[str, Any]:
    """Returns the numbers of a plan for JSON."""
    work, is_small = plan.workload, plan.rows <= MAX_JSON_ROWS
    grid_cells = [[c.rank, c.q.tolist(), c.kv.tolist()] for c in cells(plan)] if is_small else None
    attends = [sum(len(a) for a in step.attends) for step in plan.steps]
    return {
        "name": plan.name,
        "pass": plan.pass_,
        "ranks": plan.ranks,
        "seq": work.seq,
        "kv_seq": work.kv_seq,
        "mask": str(work.mask),
        "layout": names(work, plan.ranks, plan.partition),
        "steps": len(plan.steps),
        "rounds": plan.rounds,
        "imbalance": imbalance(plan),
        "travels": tables.travels(plan),
        "attends_per_step": attends,
        "grid": grid_cells,
    }


def _loops(plan: Plan) -> tuple[str, dict[str, Any]]:
    """Returns the loops of a plan as text and as plain values for JSON.

    For an irregular plan, which has no loops, the text gives the reason and summarises the steps.
    """
    try:
        loops = recover(plan)
    except PlanError as error:
        text = "\n".join([f"irregular: {error}", *_step_lines(plan)])
        return text, {"loops": None, "statements": None, "irregular": str(error)}
    text = pseudo_code(loops)
    return text, {"loops": text, "statements": len(loops.statements), "irregular": None}


def _step_lines(plan: Plan) -> list[str]:
    """Summarises each step of a plan in one line; shortens a long list in the middle."""
    lines = []
    for number, step in enumerate(plan.steps):
        messages, attends = (sum(map(len, nodes)) for nodes in (step.moves, step.attends))
        tensors = sorted({t for move in step.moves for t in move.tensors})
        traffic = (
            f"{counted(messages, 'message')} of {', '.join(tensors)}" if messages else "no message"
        )
        lines.append(f"    step {number}: {counted(attends, 'rectangle')}, {traffic}")
    return both_ends(lines, f"    ... {len(lines) - SHOWN} more steps ...")
