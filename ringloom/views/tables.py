"""Tables and bars for the terminal."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringloom.planner.analysis.balance import loads
from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.ir import Move, Plan
from ringloom.recommendation import recommend
from ringloom.rows import GIVEN_MARK, LABELS, Refusal, Row, cells, notes
from ringloom.runtimes.validation import Check
from ringloom.simulator.prediction import Prediction
from ringloom.views.units import NAME, NARROW, in_lines, length, seconds, size, times

BUSY, IDLE, WAITING = "cyan", "bright_black", "red"
BAR = 40  # characters of the longest bar
LINE = 80  # characters of a line of pseudo-code
CHECKED = {None: "-", True: "ok @{}", False: "WRONG @{}"}  # by `Row.exact`


def titled(title: str, remainder: str = "") -> Text:
    """Returns a bold title and the remainder of its line."""
    return Text.assemble((title, "bold"), remainder)


def faint(text: str) -> Text:
    """Returns a dim note."""
    return Text(text, "dim")


def wrapped(text: str) -> Text:
    """Returns pseudo-code with long lines wrapped and indented."""
    lines = [
        piece
        for line in text.splitlines()
        for piece in textwrap.wrap(line, LINE, subsequent_indent=" " * 12)
    ]
    return Text("\n".join(lines))


def traffic(travels: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table of messages and bytes per tensor, of all ranks and of the busiest sender."""
    none = {"tensor": "none", "messages": 0, "bytes": 0, "max_bytes": 0}
    lines = (
        (row["tensor"], str(row["messages"]), size(row["bytes"]), size(row["max_bytes"]))
        for row in travels or [none]
    )
    heads = "tensor", "messages", "bytes", "busiest sender"
    return plain_table(*heads, rows=lines, numbers=slice(1, None))


def travels(plan: Plan) -> list[dict[str, Any]]:
    """Counts the messages of each tensor that moves, their bytes, and the busiest sender's."""
    sums = dict[str, tuple[int, NDArray[np.int64]]]()
    for number, move in plan.moves():
        for tensor in move.tensors:
            count, sent = sums.get(tensor, (0, np.zeros(plan.ranks, np.int64)))
            one_tensor = Move((tensor,), move.blocks, move.src, move.dst)
            np.add.at(sent, move.src, message_bytes(plan, number, one_tensor))
            sums[tensor] = count + len(move), sent
    return [
        {"tensor": t, "messages": n, "bytes": int(sent.sum()), "max_bytes": int(sent.max())}
        for t, (n, sent) in sums.items()
    ]


def comparison_table(rows: Sequence[Row], checked: bool, refused: Sequence[Refusal] = ()) -> Table:
    """Returns the table of `ringloom compare`; `checked` adds the column of numeric checks.

    A star and green mark the recommended schedule, a tilde those too close to call, and a plus
    plans that the caller passed. Schedules that cannot run come last, with the reason.
    """
    heads = map(_two_lines, ("", "schedule", *LABELS, *(["checked"] if checked else [])))
    table, advice = plain_table(*heads, numbers=slice(2, None), gap=1), recommend(rows)
    table.columns[1].overflow = "fold"  # does not cut names, which users type
    for row in rows:
        best = row.schedule == advice.schedule
        texts = (
            ("*" if best else "~" if row.schedule in advice.close_to else "")
            + GIVEN_MARK * row.added,
            in_lines(row.schedule, NARROW if checked else NAME),
            *(cell.text for cell in cells(row)),
            *([CHECKED[row.exact].format(length(row.exact_seq or 0))] if checked else []),
        )
        table.add_row(*texts, style="bold green" if best else "")
    captions = [*notes(rows), *(f"{x.schedule} {x.verdict}: {x.reason}" for x in refused)]
    if captions:
        table.caption = Text("\n".join(captions))
        table.caption.justify = "left"
    return table


def _two_lines(label: str) -> str:
    """Returns a label in two lines, a single word in the second."""
    return label.replace(" ", "\n") if " " in label else f"\n{label}"


def bars(rows: Sequence[Row], console: Console) -> list[Table]:
    """Returns bars of busy and idle time per schedule; none unless on a terminal."""
    slowest = max(row.makespan_s for row in rows)
    if not console.is_terminal or not slowest:
        return []
    table, names = plain_table("", "", ""), [in_lines(row.schedule) for row in rows]
    waits = [f"waits {seconds(row.exposed_comm_s)}" * (row.exposed_comm_s > 0) for row in rows]
    name_width = max(map(len, "\n".join(names).split("\n")))
    bar_width = _bar_width(console, name_width + max(map(len, waits)))
    for row, name, wait in zip(rows, names, waits, strict=True):
        share = row.makespan_s / slowest * bar_width
        line = _bar(share * (1 - row.idle_fraction), BUSY) + _bar(share * row.idle_fraction, IDLE)
        table.add_row(name, line, Text(wait, WAITING))
    table.caption = Text.assemble(("█ busy ", BUSY), ("█ idle", IDLE), justify="left")
    return [table]


def load_bars(plan: Plan, console: Console) -> list[Table]:
    """Returns bars of work per rank; none unless on a terminal."""
    total = loads(plan).sum(axis=0)
    if not console.is_terminal or not total.any():
        return []
    table = plain_table("rank", "work", "", numbers=slice(1))
    bar_width = _bar_width(console, len("rank") + len("1.00x the average"))
    for rank, pairs in enumerate(total[:64].tolist()):
        bar = _bar(pairs / total.max() * bar_width, BUSY)
        table.add_row(str(rank), bar, f"{times(pairs / total.mean())} the average")
    return [table]


def _bar_width(console: Console, other_columns: int) -> int:
    """Returns the characters of the longest bar, next to columns of the given total width."""
    return max(1, min(BAR, console.width - other_columns - 4))


def _bar(characters: float, style: str) -> Text:
    return Text("█" * round(characters), style)


def verdict(check: Check) -> Table:
    """Returns a table of a check: errors, tolerances, and the result of the leak probe."""
    table = plain_table("", "error", "allowed", "")
    for name, allowed in check.tolerances.items():
        error = getattr(check, f"{name}_error")
        table.add_row(name, f"{error:.2g}", f"{allowed:.2g}", mark(error <= allowed))
    leaks = "none" if check.leak_free else check.leaks[0]
    table.add_row("leaks", leaks, "none", mark(check.leak_free))
    table.add_row("exact", "yes" if check.exact else "NO", "", mark(check.exact))
    return table


def mark(is_right: bool) -> Text:
    """Returns a green "ok" or a red "WRONG"."""
    return Text("ok", "green") if is_right else Text("WRONG", "bold red")


def prediction(result: Prediction) -> Table:
    """Returns the predicted times and bytes of a plan."""
    comparison = f"it does not apply to this plan: {result.bound_reason}"
    compute_lines = list[tuple[str, str]]()
    if result.bound_ratio is not None:
        comparison = f"the plan takes {times(result.bound_ratio)} as long"
    elif result.compute_bound_ratio is not None:
        least, ratio = seconds(result.compute_bound.seconds), times(result.compute_bound_ratio)
        line = f"at least {least}; the plan takes {ratio} as long"
        compute_lines = [("compute and memory", line)]
    lines = (
        ("time", seconds(result.makespan)),
        ("lower bound", f"{seconds(result.bound.seconds)}; {comparison}"),
        *compute_lines,
        ("own limit", f"{seconds(result.plan_lower_bound)}, for this plan's work and messages"),
        ("idle", f"{result.idle_fraction:.1%} of all ranks' time"),
        ("exposed communication", f"{seconds(result.exposed)} on the rank that waits longest"),
        ("bytes sent", f"{size(result.max_bytes_sent)} by the busiest rank"),
        ("peak memory", f"{size(result.peak_bytes)} on the worst rank"),
    )
    return plain_table("", "", rows=lines)


def plain_table(
    *heads: str, rows: Iterable[Iterable[str]] = (), numbers: slice = slice(0), gap: int = 2
) -> Table:
    """Returns a table without rules: numbers aligned right, columns `gap` characters apart."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    table.show_header = any(heads)
    for head in heads:
        table.add_column(head)
    for column in table.columns[numbers]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*row)
    return table
