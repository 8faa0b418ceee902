"""Prints the judgement of an emitted file: its errors, and the result of its own check."""

from rich.console import Group, RenderableType
from rich.text import Text

from ringloom.planner.errors import printable, safe_text
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.self_check import first_errors
from ringloom.runtimes.judging.verdict import Verdict
from ringloom.views.tables import mark, plain_table, titled
from ringloom.views.units import counted

SAID = {True: "passes", False: "FAILS", None: "did not run"}
LONGEST = 60  # characters of a mask


def judgement(case: Case, verdict: Verdict, own: bool | None) -> Group:
    """Returns the attention that was judged, its errors, their tolerances, and the verdict."""
    work = case.work
    mask = str(work.mask)
    mask = mask if len(mask) <= LONGEST else f"{mask[:LONGEST]}..."
    head = f": {mask} attention of {counted(work.seq, 'token')} on {counted(case.ranks, 'rank')}"
    table = plain_table("", "error", "allowed", "")
    for name, error in verdict.errors.items():
        allowed = verdict.tolerances[name]
        table.add_row(name, f"{error:.2g}", f"{allowed:.2g}", mark(error <= allowed))
    compared = verdict.queries < work.seq and verdict.queries
    table.add_row("exact", "yes" if verdict.exact else "NO", "", mark(verdict.exact))
    table.add_row("own check", SAID[own], "", "" if own is None else mark(own))
    lines: list[RenderableType] = [titled(case.target, head), table]
    if compared:
        lines.append(Text(f"compared: {compared} of {work.seq} queries", "dim"))
    if verdict.fault:
        lines.append(Text(printable(verdict.fault)))
    if verdict.reason:
        lines.append(Text(reason(verdict.reason)))
    return Group(*lines)


def reason(text: str) -> str:
    """Returns the first line of a reason, the error its traceback ends with, and other ranks."""
    first, *rest = printable(text).strip().splitlines()
    others = [line for line in rest if line.startswith("rank ")]
    errors = first_errors("\n".join(line for line in rest if line not in others))
    return "\n".join(map(safe_text, [f"{first} {errors}".strip(), *others]))
