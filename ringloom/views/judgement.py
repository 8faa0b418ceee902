"""Prints the verdict on an emitted file: its errors, and the result of its own check."""

from rich.console import Group, RenderableType
from rich.text import Text

from ringloom.planner.errors import printable, safe_text
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.self_check import first_errors
from ringloom.runtimes.judging.verdict import Verdict
from ringloom.views.tables import mark, plain_table, titled
from ringloom.views.units import counted

RESULTS = {True: "passes", False: "FAILS", None: "did not run"}
LONGEST = 60  # characters of a mask


def judgement(case: Case, verdict: Verdict, passes_own_check: bool | None) -> Group:
    """Returns the attention, its errors with their tolerances, and the verdict, as text."""
    work = case.work
    mask = str(work.mask)
    mask = mask if len(mask) <= LONGEST else f"{mask[:LONGEST]}..."
    head = f": {mask} attention of {counted(work.seq, 'token')} on {counted(case.ranks, 'rank')}"
    table = plain_table("", "error", "allowed", "")
    for name, error in verdict.errors.items():
        allowed = verdict.tolerances[name]
        table.add_row(name, f"{error:.2g}", f"{allowed:.2g}", mark(error <= allowed))
    table.add_row("exact", "yes" if verdict.exact else "NO", "", mark(verdict.exact))
    own_mark = "" if passes_own_check is None else mark(passes_own_check)
    table.add_row("own check", RESULTS[passes_own_check], "", own_mark)
    lines: list[RenderableType] = [titled(case.target, head), table]
    if 0 < verdict.queries < work.seq:
        lines.append(Text(f"compared: {verdict.queries} of {work.seq} queries", "dim"))
    if verdict.fault:
        lines.append(Text(printable(verdict.fault)))
    if verdict.reason:
        lines.append(Text(reason(verdict.reason)))
    return Group(*lines)


def reason(text: str) -> str:
    """Shortens a reason to its first line, the error at the end of its traceback, and the lines of
    other ranks."""
    first, *rest = printable(text).strip().splitlines()
    other_ranks = [line for line in rest if line.startswith("rank ")]
    errors = first_errors("\n".join(line for line in rest if line not in other_ranks))
    return "\n".join(map(safe_text, [f"{first} {errors}".strip(), *other_ranks]))
