"""Grids of ranks and rounds: their cells for figures, and the grid itself for a terminal."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import Plan
from ringloom.views.units import numbers

Blocks = NDArray[np.int32]
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_white", "bright_black")
DRAWN = 64  # ranks
WIDEST = 16  # characters of a cell's pieces; longer ones are cut


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A rectangle of blocks that `rank` computes in `round`; `full` if the mask hides no pair."""

    round: int
    rank: int
    q: Blocks
    kv: Blocks
    full: bool


def cells(plan: Plan, rounds: int | None = None) -> Iterator[Cell]:
    """Yields the rectangles of the first rounds, all by default; a round is a step that attends."""
    table = tiles(plan)
    attending = [step for step in plan.steps if step.attends][:rounds]
    for number, step in enumerate(attending):
        for attend in step.attends:
            full = table.full(attend).tolist()
            rows = zip(attend.rank.tolist(), attend.q, attend.kv, full, strict=True)
            yield from (Cell(number, r, q[q >= 0], kv[kv >= 0], f) for r, q, kv, f in rows)


def grid(plan: Plan, width: int) -> Table:
    """Returns the rounds of a plan: a row per rank, cells as `legend` explains them."""
    rounds = _rounds(plan)
    fits = max(1, (width - 6) // (2 + max((len(c.plain) for r in rounds for c in r), default=1)))
    drawn = Table(box=None, pad_edge=False, padding=(0, 1))
    drawn.add_column("rank", justify="right", style="dim", no_wrap=True)
    for number in range(min(fits, len(rounds))):
        drawn.add_column(str(number), justify="center", no_wrap=True)
    for rank, row in enumerate(zip(*rounds[:fits], strict=True)):
        drawn.add_row(str(rank), *row)
    if len(rounds) > fits or plan.ranks > DRAWN:
        shown = f"{min(fits, len(rounds))} of {len(rounds)} rounds"
        drawn.caption = f"{shown} and {min(plan.ranks, DRAWN)} of {plan.ranks} ranks are drawn"
    return drawn


def legend(plan: Plan) -> Text:
    """Returns a line that explains the cells of a grid."""
    heads = "; h: query heads" if _in_slices(plan) else ""
    return Text(f"cells: q pieces,kv pieces{heads}; ◣ partly masked; · no work", "dim")


def _rounds(plan: Plan) -> list[list[Text]]:
    """Returns [round][rank] cells, coloured by the owner of their first KV block."""
    owners = plan.partition.kv.owners
    rounds = [[Text() for _ in range(min(plan.ranks, DRAWN))] for _ in range(plan.rounds)]
    for one in cells(plan):
        if one.rank >= DRAWN:
            continue
        text = _name(plan, one)
        drawn = rounds[one.round][one.rank]
        if drawn:
            drawn.append(" ")
        colour = COLOURS[int(owners[one.kv[0]]) % len(COLOURS)]
        drawn.append(text + ("" if one.full else "◣"), f"bold {colour}" if one.full else colour)
    return [[drawn or Text("·", "dim") for drawn in row] for row in rounds]


def _in_slices(plan: Plan) -> bool:
    """Returns True if blocks are slices of heads."""
    return len(plan.partition.q.slices) > 1 or len(plan.partition.kv.slices) > 1


def _name(plan: Plan, cell: Cell) -> str:
    """Returns the pieces of both sides, and the query heads of slices: 0-7,0-7 h0-3."""
    q, kv, group = plan.partition.q, plan.partition.kv, plan.workload.group
    text = f"{numbers(q.chunk[cell.q])},{numbers(kv.chunk[cell.kv])}"
    text = text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
    if not _in_slices(plan):
        return text
    heads, shared = q.blocks[cell.q[0]].heads, kv.blocks[cell.kv[0]].heads
    both = range(max(heads.start, group * shared.start), min(heads.stop, group * shared.stop))
    return f"{text} h{numbers(both)}"
