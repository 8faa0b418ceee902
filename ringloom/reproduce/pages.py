"""Prints published numbers and ours as tables of at most 80 columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table as Drawing

from ringloom.reproduce.fitting import Fit
from ringloom.reproduce.papers.striped import CONSTANTS
from ringloom.reproduce.tables import Line, Table
from ringloom.views.tables import faint, plain_table, titled
from ringloom.views.units import counted

ARITHMETIC = "arithmetic on the paper's own numbers"
CONTEXT = "not attention alone, or a setting that is not fully known"
HEADS = "", "rows", "left out", "equal", "mean", "worst", "rank"
LARGE = 1e6  # numbers from here on are printed in powers of ten


def pages(tables: Sequence[Table]) -> Iterator[Any]:
    """Yields each table with its title, note and summary."""
    for table in tables:
        yield titled(table.title)
        yield drawing(table)
        yield from (faint(note) for note in (table.note, describe(table)) if note)
        yield ""


def overview(tables: Sequence[Table]) -> Iterator[Any]:
    """Yields a table with a row per table: number of rows, errors and rank correlation."""
    yield plain_table(*HEADS, rows=map(agreement, tables), numbers=slice(1, None))
    yield faint("equal: rows with the same printed digits; mean, worst: error, in points (pp) for")
    yield faint("percentages; rank: rank correlation")
    yield faint(f"left out: {ARITHMETIC}, rows without numbers,")
    yield faint(f"and context: {CONTEXT}")
    yield faint("ringloom reproduce striped|ring|distflash|burst|charts shows every row")


def drawing(table: Table) -> Drawing:
    """Returns a table with the columns published, ours, error and note."""
    lines = list[tuple[str, ...]]()
    for line in table.lines:
        both = (number(value, line.digits) for value in (line.published, line.ours))
        lines.append((line.what, *both, deviation(line), note(line)))
    heads = "", "published", "ours", "error", ""
    return plain_table(*heads, rows=lines, numbers=slice(1, 4))


def note(line: Line) -> str:
    """Returns the note of a line, with a label for arithmetic."""
    return "; ".join(filter(None, ("arithmetic" * line.arithmetic, line.note)))


def number(value: float | None, digits: int) -> str:
    """Formats a number with as many decimals as the paper prints."""
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) >= LARGE else f"{value:.{digits}f}"


def deviation(line: Line) -> str:
    """Returns the error of a line as text, "=" if both numbers have the same printed digits."""
    if line.equal or line.error is None:
        return "=" if line.equal else ""
    return _error(line.error, line.points, "+.1f")


def _error(error: float, points: bool, digits: str) -> str:
    return f"{100 * error:{digits}}{' pp' if points else '%'}"


def agreement(table: Table) -> tuple[str, ...]:
    """Returns the cells of `HEADS` for a table; "-" if nothing is compared."""
    summary, left_out = table.summary, sum(not line.counted for line in table.lines)
    sizes = summary.mean_error, summary.worst_error
    errors = ("-" if size is None else _error(size, table.points, ".1f") for size in sizes)
    rank = "-" if summary.rank_correlation is None else f"{summary.rank_correlation:.3f}"
    equal = str(summary.equal) if summary.compared else "-"
    return table.title, str(summary.rows), str(left_out or ""), equal, *errors, rank


def describe(table: Table) -> str:
    """Describes the agreement of a table in one line."""
    summary, parts = table.summary, list[str]()
    if summary.mean_error is not None and summary.worst_error is not None:
        parts.append(f"{summary.equal} of {summary.compared} equal as printed")
        sizes = summary.mean_error, summary.worst_error
        mean, worst = (_error(size, table.points, ".2f") for size in sizes)
        parts.append(f"mean error {mean}, worst {worst}")
    if summary.rank_correlation is not None:
        parts.append(f"rank correlation {summary.rank_correlation:.3f}")
    for name, meaning in (("arithmetic", ARITHMETIC), ("context", f"context: {CONTEXT}")):
        if rows := [line for line in table.lines if getattr(line, name)]:
            subject = "all rows" if len(rows) == len(table.lines) > 1 else counted(len(rows), "row")
            parts.append(f"{subject} {'is' if len(rows) == 1 else 'are'} {meaning}")
    return "; ".join(parts)


def fit_table(fits: Mapping[str, Fit]) -> Drawing:
    """Returns a table of refitted constants, with errors on fitted and held-out rows."""
    table = plain_table("", *CONSTANTS, "mean", "worst", "left out", "halves")
    for name, fit in fits.items():
        errors = (fit.mean_error, fit.worst_error, fit.leave_one_out, fit.halves)
        constants = (f"{value:.4g}" for value in fit.constants)
        table.add_row(name, *constants, *(f"{error:.2%}" for error in errors))
    return table
