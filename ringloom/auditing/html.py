"""The verdict of an audit on one HTML page that needs neither a network nor scripts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from planner.errors import RingloomError
from planner.version import VERSION
from ringloom.auditing.page import facts_of
from ringloom.auditing.pictures import LEGEND, counts, difference, owners_of
from ringloom.auditing.verdict import Audit
from ringloom.report import asset
from ringloom.report.pictures.palette import rank_colours
from ringloom.report.summary import TEMPLATES
from ringloom.views.units import counted

EACH = "rank", "head"
MOST = 16  # panels


def page(audit: Audit, each: str = "", command: str = "") -> str:
    """The page of a verdict; `each`: pictures of each rank's rows, or of each head.

    Raises RingloomError for any other `each`.
    """
    if each and each not in EACH:
        raise RingloomError(f"pictures are drawn for each {' or '.join(EACH)}, not {each!r}")
    work = audit.case.work
    html: str = TEMPLATES.get_template("audit.html").render(
        title=f"{audit.name}: {work.mask} attention on {counted(audit.case.ranks, 'rank')}",
        verdict=audit.said,
        exact=audit.exact,
        reason=audit.report.could_not_run or "",
        faults=audit.faults,
        errors=audit.report.errors,
        facts=[*facts_of(audit)],
        invisible=audit.report.invisible,
        panels=[*panels(audit, each)],
        legend=LEGEND,
        ranks=[*enumerate(rank_colours(audit.case.ranks))] if audit.case.ranks <= MOST else [],
        version=VERSION,
        command=command,
        style=Markup(asset("style.css")),
    )
    return html


def panels(audit: Audit, each: str) -> Iterator[dict[str, Any]]:
    """Yields the three pictures of every matrix that is drawn, with its title.

    Without `each`, those of the output and of gradients that differ from it.
    """
    wanted = audit.report.wanted
    if wanted is None:
        return
    wanted, shards = np.asarray(wanted), audit.placed.q
    owners, drawn = owners_of(len(wanted), shards), list[NDArray[np.generic]]()
    for computed in audit.report.computed:
        matrix = np.asarray(computed.matrix)
        repeated = any(np.array_equal(matrix, other) for other in drawn)
        if (repeated or (drawn and computed.head)) and each != "head":
            continue
        drawn.append(matrix)
        alike = f" and {computed.lanes - 1} more alike" if computed.lanes > 1 else ""
        title = f"{computed.tensor}, batch row {computed.batch}, head {computed.head}{alike}"
        if each != "rank" or owners is None:
            yield _panel(title, wanted, matrix, owners)
            continue
        for rank in range(min(audit.case.ranks, MOST)):
            rows = np.flatnonzero(owners == rank)
            if len(rows):
                cells = wanted[rows], matrix[rows], owners[rows]
                yield _panel(f"{computed.tensor}, rows of rank {rank}", *cells)


def _panel(
    title: str,
    wanted: NDArray[np.generic],
    computed: NDArray[np.generic],
    owners: NDArray[np.int64] | None,
) -> dict[str, Any]:
    wrong = int((wanted != computed).sum())
    differs = f"difference: {counted(wrong, 'cell')}" if wrong else "no difference"
    return {
        "title": title,
        "pictures": [
            ("wanted", counts(wanted, owners)),
            ("computed", counts(computed, owners)),
            (differs, difference(computed, wanted, owners)),
        ],
    }
