"""Formats the verdict of an audit for the terminal."""

from collections.abc import Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ringloom.auditing.verdict import Audit
from ringloom.views.tables import faint, mark, plain_table
from ringloom.views.units import counted, seconds

MAX_MASK = 48  # characters
MAX_FAULTS = 8
COLUMNS = 80


def page(audit: Audit) -> Group:
    """Returns the verdict, the audited case, faults, errors, work and bytes."""
    report = audit.report
    summary = Text(audit.summary, f"bold {'green' if audit.exact else 'red'}")
    parts: list[RenderableType] = [summary, Text(title_of(audit)), Text()]
    if report.could_not_run is not None:
        return Group(*parts, Text(report.could_not_run))
    for fault in audit.faults[:MAX_FAULTS]:
        parts.append(Text.assemble((f"{fault.kind}", "bold"), f", {fault.pass_}: {fault.sentence}"))
    if (hidden := len(audit.faults) - MAX_FAULTS) > 0:
        parts.append(faint(f"and {counted(hidden, 'fault')} more"))
    if report.errors:
        table = plain_table("random inputs", "error", "of dense attention", "allowed", "")
        for column in table.columns[1:4]:
            column.justify = "right"
        for name, error in report.errors.items():
            numbers = error.error, error.unit, error.tolerance * error.unit
            table.add_row(name, *(f"{number:.2g}" for number in numbers), mark(error.exact))
        parts += [Text()] * bool(audit.faults) + [table]
    facts = plain_table("", "", rows=facts_of(audit))
    return Group(
        *parts, Text(), facts, *(faint(f"not covered: {line}") for line in report.invisible)
    )


def title_of(audit: Audit) -> str:
    """Returns the function, the attention and the ranks in one line."""
    work, mask = audit.case.work, str(audit.case.work.mask)
    mask = mask if len(mask) <= MAX_MASK else f"{mask[:MAX_MASK]}..."
    ranks = counted(audit.case.ranks, "rank")
    return (
        f"{audit.name}: {mask} attention of {counted(work.seq, 'token')}, {work.dtype}, on {ranks}"
    )


def facts_of(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yields labels and values: the layout, the work of ranks, the bytes sent, and the duration."""
    if audit.layout:
        origin = "detected" if audit.report.layout is not None else "given"
        yield f"layout ({origin})", audit.layout
    if audit.balance:
        yield "work", audit.balance
    for traffic in audit.sent:
        yield f"sent, {traffic.pass_}", traffic.sentence
    yield "duration", f"{counted(audit.report.calls, 'call')}, {seconds(audit.report.seconds)}"


def text(audit: Audit) -> str:
    """Returns the page as plain text, 80 columns wide."""
    console = Console(file=StringIO(), width=COLUMNS, highlight=False, markup=False, emoji=False)
    with console.capture() as drawn:
        console.print(page(audit))
    return drawn.get().rstrip("\n")
