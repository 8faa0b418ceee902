"""Prints reproductions as tables of at most 80 columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table as Drawing

from ringloom.reproduce.fitting import Fit
from ringloom.reproduce.papers.striped import CONSTANTS
from ringloom.reproduce.tables import Line, Table
from ringloom.views.tables import faint, plain_table, titled
from ringloom.views.units import counted

ARITHMETIC = "arithmetic of the paper's own numbers"
CONTEXT = "what is not attention alone in a setting that is known in full"
HEADS = "", "rows", "left out", "alike", "mean", "worst", "rank"
WIDE = 1e6  # numbers from here on are printed in powers of ten


def pages(tables: Sequence[Table]) -> Iterator[Any]:
    """Yields each table with its title, its note and its summary."""
    for table in tables:
        yield titled(table.title)
        yield drawing(table)
        yield from (faint(note) for note in (table.note, in_words(table)) if note)
        yield ""


def overview(tables: Sequence[Table]) -> Iterator[Any]:
    """Yields a table with a row per table: number of rows, errors and rank correlation."""
    yield plain_table(*HEADS, rows=map(agreement, tables), numbers=slice(1, None))
    yield faint("alike: rows printed with the same digits; mean, worst: error, of percentages in")
    yield faint("points (pp); rank: correlation")
    yield faint(f"left out: rows of {ARITHMETIC}, rows without numbers,")
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
    """Returns the note of a line, with a label if the line is mere arithmetic."""
    return "; ".join(filter(None, ("arithmetic" * line.arithmetic, line.note)))


def number(value: float | None, digits: int) -> str:
    """Formats a number with as many decimals as the paper prints."""
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) >= WIDE else f"{value:.{digits}f}"


def deviation(line: Line) -> str:
    """Returns the printed error of a line, "=" if both numbers print alike."""
    if line.equal or line.error is None:
        return "=" if line.equal else ""
    return _error(line.error, line.points, "+.1f")


def _error(error: float, points: bool, digits: str) -> str:
    return f"{100 * error:{digits}}{' pp' if points else '%'}"


def agreement(table: Table) -> tuple[str, ...]:
    """Returns the cells of a row of `HEADS`; "-" if nothing is compared."""
    summary, left_out = table.summary, sum(not line.counted for line in table.lines)
    sizes = summary.mean_error, summary.worst_error
    errors = ("-" if e is None else _error(e, table.points, ".1f") for e in sizes)
    rank = "-" if summary.rank_correlation is None else f"{summary.rank_correlation:.3f}"
    alike = str(summary.equal) if summary.compared else "-"
    return table.title, str(summary.rows), str(left_out or ""), alike, *errors, rank


def in_words(table: Table) -> str:
    """Returns one line about the agreement of a table."""
    summary, parts = table.summary, list[str]()
    if summary.mean_error is not None and summary.worst_error is not None:
        parts.append(f"{summary.equal} of {summary.compared} printed alike")
        sizes = summary.mean_error, summary.worst_error
        mean, worst = (_error(size, table.points, ".2f") for size in sizes)
        parts.append(f"error {mean} mean, {worst} worst")
    if summary.rank_correlation is not None:
        parts.append(f"rank correlation {summary.rank_correlation:.3f}")
    for name, meaning in (("arithmetic", ARITHMETIC), ("context", f"context: {CONTEXT}")):
        if rows := [line for line in table.lines if getattr(line, name)]:
            which = "all rows" if len(rows) == len(table.lines) > 1 else counted(len(rows), "row")
            parts.append(f"{which} {'is' if len(rows) == 1 else 'are'} {meaning}")
    return "; ".join(parts)


def fitted(fits: Mapping[str, Fit]) -> Drawing:
    """Returns refitted constants with their errors on fitted and held-out rows."""
    drawn = plain_table("", *CONSTANTS, "seen", "worst", "left out", "halves")
    for name, fit in fits.items():
        errors = (fit.mean_error, fit.worst_error, fit.leave_one_out, fit.halves)
        constants = (f"{value:.4g}" for value in fit.constants)
        drawn.add_row(name, *constants, *(f"{error:.2%}" for error in errors))
    return drawn
