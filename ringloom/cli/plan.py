"""Draw a verified plan step by step and print its loops.

Example:
  ringloom plan balanced --ranks 8 --seq 256k --kv-heads 8 -o plan.json
"""

from typing import Any

import click

from ringloom.cli.options import FILE, plans_of, source_options
from ringloom.cli.output import console, show, working
from ringloom.comparison import asked
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

GRID = 4000  # the JSON object lists the cells of plans with at most this many rows


@click.command()
@source_options()
@click.option("-o", "--output", type=FILE, help="Also write the plan to this file.")
def command(source: str, output: str | None, **given: Any) -> None:
    plans = plans_of(source, given)
    if output:
        save(plans, output)
    with working("reading the loops"):
        forms = [(p, _summary(p), *_looped(p)) for p in plans]
    pictures = [one for p, about, text, _ in forms for one in _portrait(p, about, text)]
    summaries = [about | loops for _, about, _, loops in forms]
    written = f"written to {output}" if output else None
    show({"plans": summaries, "verified": True}, *pictures, text=written)


def _portrait(plan: Plan, about: dict[str, Any], loops: str) -> list[Any]:
    head = tables.titled(
        plan.name,
        f": {asked(plan.workload, plan.pass_, plan.ranks)}; {counted(plan.rounds, 'round')},"
        f" imbalance {about['imbalance']:.2f}, verified exact",
    )
    terminal, traffic = console(), tables.traffic(about["travels"])
    pictures = grid(plan, terminal.width), legend(plan), *tables.load_bars(plan, terminal)
    return [head, f"layout: {about['layout']}", *pictures, traffic, "", tables.wrapped(loops), ""]


def _summary(plan: Plan) -> dict[str, Any]:
    work, small = plan.workload, plan.rows <= GRID
    drawn = [[c.rank, c.q.tolist(), c.kv.tolist()] for c in cells(plan)] if small else None
    rounds = [sum(len(a) for a in step.attends) for step in plan.steps]
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
        "attends_per_step": rounds,
        "grid": drawn,
    }


def _looped(plan: Plan) -> tuple[str, dict[str, Any]]:
    """Returns the recovered and checked loops of a plan as text and as plain values for JSON.

    For an irregular plan, the text gives the reason and summarises each step.
    """
    try:
        loops = recover(plan)
    except PlanError as error:
        text = "\n".join([f"irregular: {error}", *_tabled(plan)])
        return text, {"loops": None, "statements": None, "irregular": str(error)}
    text = pseudo_code(loops)
    return text, {"loops": text, "statements": len(loops.statements), "irregular": None}


def _tabled(plan: Plan) -> list[str]:
    """Summarises each step of a plan in a line; of many steps, only the first and last ones."""
    lines = []
    for number, step in enumerate(plan.steps):
        messages, attends = (sum(map(len, nodes)) for nodes in (step.moves, step.attends))
        tensors = sorted({t for move in step.moves for t in move.tensors})
        what = (
            f"{counted(messages, 'message')} of {', '.join(tensors)}" if messages else "no message"
        )
        lines.append(f"    step {number}: {counted(attends, 'rectangle')}, {what}")
    return both_ends(lines, f"    ... {len(lines) - SHOWN} more steps ...")
