"""The verdict of an audit as one HTML page that needs neither network nor scripts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from PIL.Image import Image

from ringloom.auditing.page import asked, facts_of
from ringloom.auditing.pictures import (
    LEGEND,
    Cell,
    Cells,
    Ints,
    address,
    counts,
    difference,
    owners_of,
    place_of,
)
from ringloom.auditing.verdict import Audit
from ringloom.planner.errors import RingloomError
from ringloom.planner.version import VERSION
from ringloom.report import asset
from ringloom.report.pictures.palette import rank_colours
from ringloom.report.summary import TEMPLATES
from ringloom.runtimes.audit.report import Computed
from ringloom.views.units import counted

EACH = "rank", "head"
MOST = 16  # maximum number of ranks with pictures or in the legend


@dataclass(frozen=True, slots=True)
class Panel:
    """Pictures of a matrix, each with a title and a mark in percent from the left and top."""

    title: str
    pictures: tuple[tuple[str, Image, tuple[float, float] | None], ...]


def page(audit: Audit, each: str = "", command: str = "") -> str:
    """Returns the page of a verdict; `each`: draw every rank's rows or every head.

    Raises RingloomError for any other `each`.
    """
    if each and each not in EACH:
        raise RingloomError(f"each must be {' or '.join(EACH)}, not {each!r}")
    ranks = audit.case.ranks
    html: str = TEMPLATES.get_template("audit.html").render(
        title=asked(audit),
        answer=audit.said,
        reason=audit.report.could_not_run or "",
        faults=audit.faults,
        errors=audit.report.errors,
        facts=[*facts_of(audit)],
        invisible=audit.report.invisible,
        pairs=audit.report.wanted is not None,
        panels=panels(audit, each),
        address=address,
        pooling=_pooling(audit),
        left=f"Pictures show the first {MOST} of {ranks} ranks."
        * (each == "rank" and ranks > MOST),
        legend=LEGEND,
        ranks=[*enumerate(rank_colours(ranks))] if audit.placed.q and 1 < ranks <= MOST else [],
        version=VERSION,
        command=command,
        style=Markup(asset("style.css") + asset("audit.css")),
    )
    return html


def panels(audit: Audit, each: str) -> Iterator[Panel]:
    """Yields three pictures per matrix, with its title.

    Without `each`, draws the output and those gradients that differ from it.
    """
    if audit.report.wanted is None:
        return
    wanted = np.asarray(audit.report.wanted)
    owners, drawn = owners_of(len(wanted), audit.placed.q), list[Cells]()
    for computed in audit.report.computed:
        matrix = np.asarray(computed.matrix)
        repeated = any(np.array_equal(matrix, other) for other in drawn)
        if (repeated or (drawn and computed.head)) and each != "head":
            continue
        drawn.append(matrix)
        title, first = _title(audit, computed), _first(audit, computed)
        if each != "rank" or owners is None:
            yield _panel(title, wanted, matrix, owners, first)
            continue
        for rank in range(min(audit.case.ranks, MOST)):
            if len(rows := np.flatnonzero(owners == rank)):
                cells = wanted[rows], matrix[rows], owners[rows]
                own = first and first[0] in rows and (int((rows < first[0]).sum()), first[1])
                yield _panel(f"{title}: queries of rank {rank}", *cells, own or None)


def _panel(
    title: str, wanted: Cells, computed: Cells, owners: Ints | None, first: Cell | None
) -> Panel:
    wrong = int((wanted != computed).sum())
    differs = f"difference: {counted(wrong, 'cell')}" if wrong else "no difference"
    mark = place_of(first, wanted.shape, owners is not None) if first else None
    differs += ", the first in the ring" * (mark is not None)
    pictures = (
        ("wanted", counts(wanted, owners), None),
        ("computed", counts(computed, owners), None),
        (differs, difference(computed, wanted, owners), mark),
    )
    return Panel(title, pictures)


def _title(audit: Audit, computed: Computed) -> str:
    """Returns the tensor and head of a matrix, and how many other heads are equal."""
    work = audit.case.work
    side = "KV head" if computed.tensor in ("dk", "dv") else "head"
    row = f" of batch row {computed.batch}" if work.batch > 1 else ""
    alike = f", equal to {computed.lanes - 1} more" if computed.lanes > 1 else ""
    return f"{computed.tensor} of {side} {computed.head}{row}{alike}"


def _first(audit: Audit, computed: Computed) -> Cell | None:
    """Returns the cell of the first wrong pair of a matrix, if a fault names one."""
    rows, columns = computed.matrix.shape
    work, lane = audit.case.work, (computed.tensor, computed.batch, computed.head)
    for fault in audit.faults:
        pair = fault.query, fault.key
        if (fault.tensor, fault.batch, fault.head) == lane and None not in pair:
            return int(pair[0] or 0) * rows // work.seq, int(pair[1] or 0) * columns // work.kv_seq
    return None


def _pooling(audit: Audit) -> str:
    """Returns how many pairs a cell averages, in words; "" if each pair has a cell."""
    work, wanted = audit.case.work, audit.report.wanted
    if wanted is None or wanted.shape == (work.seq, work.kv_seq):
        return ""
    return f"A cell is the average of {work.seq * work.kv_seq / wanted.size:.3g} pairs."
