"""The verdict of an audit for the terminal."""

from collections.abc import Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ringloom.auditing.verdict import Audit
from ringloom.views.tables import faint, mark, plain_table
from ringloom.views.units import counted, seconds

LONGEST = 48  # maximum characters of a mask
SHOWN = 8  # maximum number of faults
COLUMNS = 80


def page(audit: Audit) -> Group:
    """Returns the verdict, the audited case, faults, errors, work and bytes."""
    report = audit.report
    colour = "green" if audit.exact else "red"
    parts: list[RenderableType] = [Text(audit.said, f"bold {colour}"), Text(asked(audit)), Text()]
    if report.could_not_run is not None:
        return Group(*parts, Text(report.could_not_run))
    for fault in audit.faults[:SHOWN]:
        parts.append(Text.assemble((f"{fault.kind}", "bold"), f", {fault.pass_}: {fault.sentence}"))
    if left := len(audit.faults) - SHOWN:
        parts += [faint(f"and {counted(left, 'fault')} more")] * (left > 0)
    if report.errors:
        table = plain_table("random inputs", "error", "of dense attention", "allowed", "")
        for column in table.columns[1:4]:
            column.justify = "right"
        for name, one in report.errors.items():
            allowed = f"{one.tolerance * one.unit:.2g}"
            table.add_row(name, f"{one.error:.2g}", f"{one.unit:.2g}", allowed, mark(one.exact))
        parts += [Text()] * bool(audit.faults) + [table]
    facts = plain_table("", "", rows=facts_of(audit))
    return Group(
        *parts, Text(), facts, *(faint(f"not covered: {line}") for line in report.invisible)
    )


def asked(audit: Audit) -> str:
    """Returns the function, the attention and the ranks in one line."""
    work, mask = audit.case.work, str(audit.case.work.mask)
    mask = mask if len(mask) <= LONGEST else f"{mask[:LONGEST]}..."
    ranks = counted(audit.case.ranks, "rank")
    return (
        f"{audit.name}: {mask} attention of {counted(work.seq, 'token')}, {work.dtype}, on {ranks}"
    )


def facts_of(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yields further facts: the layout, the work of ranks, and the bytes they send."""
    if audit.layout:
        known = "detected" if audit.report.layout is not None else "given"
        yield f"layout ({known})", audit.layout
    if audit.balance:
        yield "work", audit.balance
    for one in audit.sent:
        yield f"sent, {one.pass_}", one.sentence
    yield "took", f"{counted(audit.report.calls, 'call')}, {seconds(audit.report.seconds)}"


def text(audit: Audit) -> str:
    """Returns the page as plain text, 80 columns wide."""
    console = Console(file=StringIO(), width=COLUMNS, highlight=False, markup=False, emoji=False)
    with console.capture() as drawn:
        console.print(page(audit))
    return drawn.get().rstrip("\n")
