"""Draws the blocks that each of eight workers computes in each round.

Like figure 1 of DistFlashAttn: ring and the balanced schedule with a causal mask.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import ringloom as rl
from ringloom.figures.sheet import INK, LINE, WASTE
from ringloom.planner.analysis.balance import loads
from ringloom.planner.ir import Plan
from ringloom.simulator.pictures import COMPUTE, MERGE, SEND
from ringloom.views.grids import cells
from ringloom.views.units import numbers

RANKS = 8
SCHEDULES = ("ring", "balanced")
OWN, DIAGONAL, HELPS = COMPUTE, SEND, MERGE


def grid_plan(schedule: str) -> Plan:
    """Returns the plan of a causal workload on eight workers."""
    return rl.plan(schedule, rl.Workload(seq=64 * RANKS, heads=1, head_dim=8), RANKS)


def workers() -> Figure:
    """Returns a figure with one grid per schedule and a column per round."""
    plans = [grid_plan(name) for name in SCHEDULES]
    figure = Figure(figsize=(7.0, 3.1))
    shares = [plan.rounds for plan in plans]
    panels = figure.subplots(1, len(plans), width_ratios=shares)
    for axes, plan, name in zip(panels, plans, SCHEDULES, strict=True):
        _draw_grid(axes, plan)
        load = loads(plan)
        idle = f"{int((load == 0).sum())} of {load.size}"
        axes.set_title(f"{name}: {plan.rounds} rounds, {idle} cells idle")
    panels[0].set_ylabel("worker")
    marks = [Rectangle((0, 0), 1, 1, facecolor=c, hatch=h, edgecolor="white") for c, h in KINDS]
    marks.append(Rectangle((0, 0), 1, 1, facecolor=WASTE, edgecolor=LINE))
    names = ("own queries", "own queries, causal tile", "another worker's queries", "idle")
    figure.legend(marks, names, loc="lower center", ncols=4, frameon=False)
    figure.subplots_adjust(bottom=0.22, wspace=0.12, top=0.92, left=0.06, right=0.99)
    return figure


LABEL: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "color": INK,
    "fontsize": 6.5,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.2},
}
KINDS = ((OWN, ""), (DIAGONAL, ""), (HELPS, "////"))


def _draw_grid(axes: Axes, plan: Plan) -> None:
    """Draws cells in the colour of their kind, with their query and KV blocks as labels."""
    axes.add_patch(Rectangle((0, 0), plan.rounds, RANKS, facecolor=WASTE))
    owners = plan.partition.q.owners
    for cell in cells(plan):
        has_own_queries = (owners[cell.q] == cell.rank).all()
        colour, hatch = KINDS[2] if not has_own_queries else KINDS[0] if cell.full else KINDS[1]
        corner = cell.round, cell.rank
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, hatch=hatch, edgecolor="white"))
        label = f"{numbers(cell.q)},{numbers(cell.kv)}"
        axes.text(cell.round + 0.5, cell.rank + 0.5, label, **LABEL)
    for edge in range(1, max(plan.rounds, RANKS)):
        axes.axhline(edge, color="white", lw=0.8)
        axes.axvline(edge, color="white", lw=0.8)
    axes.set_xlim(0, plan.rounds)
    axes.set_ylim(RANKS, 0)
    axes.set_xticks([r + 0.5 for r in range(plan.rounds)], [str(r + 1) for r in range(plan.rounds)])
    axes.set_yticks([r + 0.5 for r in range(RANKS)], [str(r) for r in range(RANKS)])
    axes.set_xlabel("round")
    axes.tick_params(length=0)
