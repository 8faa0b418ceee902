"""Grids of ranks and rounds: their cells, and a grid for the terminal."""

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
MOST_RANKS = 64  # in a grid
LONGEST = 16  # characters of the pieces in a cell; longer texts are cut


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A rectangle of blocks that `rank` computes in `round`; `full` if no pair is masked."""

    round: int
    rank: int
    q: Blocks
    kv: Blocks
    full: bool


def cells(plan: Plan, rounds: int | None = None) -> Iterator[Cell]:
    """Yields the rectangles of the first rounds, by default all.

    A round is a step that attends.
    """
    table = tiles(plan)
    steps = [step for step in plan.steps if step.attends][:rounds]
    for number, step in enumerate(steps):
        for attend in step.attends:
            full = table.full(attend).tolist()
            rows = zip(attend.rank.tolist(), attend.q, attend.kv, full, strict=True)
            yield from (Cell(number, r, q[q >= 0], kv[kv >= 0], f) for r, q, kv, f in rows)


def grid(plan: Plan, width: int) -> Table:
    """Returns a table of as many rounds of a plan as fit in `width` characters, a row per rank."""
    rounds = _rounds(plan)
    widest = max((len(cell.plain) for row in rounds for cell in row), default=1)
    shown = min(max(1, (width - 6) // (2 + widest)), len(rounds))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("rank", justify="right", style="dim", no_wrap=True)
    for number in range(shown):
        table.add_column(str(number), justify="center", no_wrap=True)
    for rank, row in enumerate(zip(*rounds[:shown], strict=True)):
        table.add_row(str(rank), *row)
    if len(rounds) > shown or plan.ranks > MOST_RANKS:
        ranks = f"{min(plan.ranks, MOST_RANKS)} of {plan.ranks} ranks"
        table.caption = f"showing {shown} of {len(rounds)} rounds and {ranks}"
    return table


def legend(plan: Plan) -> Text:
    """Returns a line that explains the cells of a grid."""
    heads = "; h: query heads" if _in_slices(plan) else ""
    return Text(f"cells: query pieces,KV pieces{heads}; ◣ partly masked; · no work", "dim")


def _rounds(plan: Plan) -> list[list[Text]]:
    """Returns the texts [round][rank], coloured by the owner of their first KV block."""
    owners = plan.partition.kv.owners
    rounds = [[Text() for _ in range(min(plan.ranks, MOST_RANKS))] for _ in range(plan.rounds)]
    for cell in cells(plan):
        if cell.rank >= MOST_RANKS:
            continue
        text = rounds[cell.round][cell.rank]
        if text:
            text.append(" ")
        colour = COLOURS[int(owners[cell.kv[0]]) % len(COLOURS)]
        name, style = _name(plan, cell), f"bold {colour}" if cell.full else colour
        text.append(name + ("" if cell.full else "◣"), style)
    return [[text or Text("·", "dim") for text in row] for row in rounds]


def _in_slices(plan: Plan) -> bool:
    """Returns True if blocks do not have all heads."""
    return len(plan.partition.q.slices) > 1 or len(plan.partition.kv.slices) > 1


def _name(plan: Plan, cell: Cell) -> str:
    """Returns the pieces of both sides, with the query heads of a slice: 0-7,0-7 h0-3."""
    q, kv, group = plan.partition.q, plan.partition.kv, plan.workload.group
    text = f"{numbers(q.chunk[cell.q])},{numbers(kv.chunk[cell.kv])}"
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    if not _in_slices(plan):
        return text
    q_heads, kv_heads = q.blocks[cell.q[0]].heads, kv.blocks[cell.kv[0]].heads
    first, end = group * kv_heads.start, group * kv_heads.stop
    return f"{text} h{numbers(range(max(q_heads.start, first), min(q_heads.stop, end)))}"
