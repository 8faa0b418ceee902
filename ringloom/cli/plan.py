"""Draw a verified plan round by round, with its loops.

Example:
  ringloom plan balanced --ranks 8 --seq 256k --kv-heads 8 -o plan.json
"""

from typing import Any

import click

from planner.analysis.balance import imbalance
from planner.files import save
from planner.ir import Plan
from ringloom.cli.options import plans_of, source_options
from ringloom.cli.output import console, show
from ringloom.cli.progress import working
from ringloom.looping import looped
from ringloom.views import tables
from ringloom.views.grids import cells, grid, legend
from ringloom.views.units import length

GRID = 4000  # rows of a plan up to which the JSON object lists its cells


@click.command()
@source_options()
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the plan file.")
def command(source: str, output: str | None, **given: Any) -> None:
    plans = plans_of(source, given)
    if output:
        save(plans, output)
    with working("reading the loops"):
        forms = [(p, *looped(p), tables.layout(p)) for p in plans]
    pictures = [one for p, text, _, layout in forms for one in _portrait(p, text, layout)]
    summaries = [_summary(p, layout) | loops for p, _, loops, layout in forms]
    written = [f"written to {output}"] if output else []
    show({"plans": summaries, "verified": True}, *pictures, *written)


def _portrait(plan: Plan, loops: str, layout: str) -> list[Any]:
    head = (
        f"[bold]{plan.name}[/] {plan.pass_}, {plan.workload.mask}, {plan.ranks} ranks x"
        f" {length(plan.workload.seq)} tokens, {plan.rounds} rounds,"
        f" imbalance {imbalance(plan):.2f}, verified exact"
    )
    terminal = console()
    pictures = grid(plan, terminal.width), legend(plan), *tables.load_bars(plan, terminal)
    return [head, f"layout: {layout}", *pictures, tables.traffic(plan), "", tables.loops(loops), ""]


def _summary(plan: Plan, layout: str) -> dict[str, Any]:
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
        "layout": layout,
        "steps": len(plan.steps),
        "rounds": plan.rounds,
        "imbalance": imbalance(plan),
        "travels": [
            {"tensor": t, "messages": n, "bytes": int(sent.sum()), "max_bytes": int(sent.max())}
            for t, n, sent in tables.messages(plan)
        ],
        "attends_per_step": rounds,
        "grid": drawn,
    }
