"""Writes the verdict of an audit as one HTML page that needs neither network nor scripts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from PIL.Image import Image

from ringloom.auditing.page import facts_of, title_of
from ringloom.auditing.pictures import (
    LEGEND,
    Cell,
    Cells,
    Ints,
    centre_of,
    data_url,
    draw_counts,
    draw_difference,
    owners_of,
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
MAX_RANKS = 16  # maximum number of ranks with pictures or in the legend


@dataclass(frozen=True, slots=True)
class Panel:
    """Pictures of a matrix, each with a caption and a mark [percent from the left and top]."""

    title: str
    pictures: tuple[tuple[str, Image, tuple[float, float] | None], ...]


def page(audit: Audit, each: str = "", command: str = "") -> str:
    """Returns the page of a verdict.

    `each`: "rank" draws the rows of every rank, "head" every head. Raises RingloomError for any
    other value.
    """
    if each and each not in EACH:
        raise RingloomError(f"each must be {' or '.join(EACH)}, not {each!r}")
    ranks = audit.case.ranks
    has_legend = audit.located_case.q is not None and 1 < ranks <= MAX_RANKS
    html: str = TEMPLATES.get_template("audit.html").render(
        title=title_of(audit),
        answer=audit.summary,
        reason=audit.report.could_not_run or "",
        faults=audit.faults,
        errors=audit.report.errors,
        facts=[*facts_of(audit)],
        invisible=audit.report.invisible,
        pairs=audit.report.wanted is not None,
        panels=panels(audit, each),
        data_url=data_url,
        pooling=_pooling(audit),
        note=f"Pictures show the first {MAX_RANKS} of {ranks} ranks."
        * (each == "rank" and ranks > MAX_RANKS),
        legend=LEGEND,
        ranks=[*enumerate(rank_colours(ranks))] if has_legend else [],
        version=VERSION,
        command=command,
        style=Markup(asset("style.css") + asset("audit.css")),
    )
    return html


def panels(audit: Audit, each: str) -> Iterator[Panel]:
    """Yields a panel of three pictures per matrix.

    Without `each`, draws the output and the gradients whose matrices differ from it.
    """
    if audit.report.wanted is None:
        return
    wanted = np.asarray(audit.report.wanted)
    owners, drawn = owners_of(len(wanted), audit.located_case.q), list[Cells]()
    for computed in audit.report.computed:
        matrix = np.asarray(computed.matrix)
        is_repeated = any(np.array_equal(matrix, other) for other in drawn)
        if (is_repeated or (drawn and computed.head)) and each != "head":
            continue
        drawn.append(matrix)
        title, fault_cell = _title(audit, computed), _first_fault(audit, computed)
        if each != "rank" or owners is None:
            yield _panel(title, wanted, matrix, owners, fault_cell)
            continue
        for rank in range(min(audit.case.ranks, MAX_RANKS)):
            if len(rows := np.flatnonzero(owners == rank)):
                cells = wanted[rows], matrix[rows], owners[rows]
                cell = None
                if fault_cell and fault_cell[0] in rows:
                    cell = int((rows < fault_cell[0]).sum()), fault_cell[1]
                yield _panel(f"{title}: queries of rank {rank}", *cells, cell)


def _panel(
    title: str, wanted: Cells, computed: Cells, owners: Ints | None, fault_cell: Cell | None
) -> Panel:
    wrong = int((wanted != computed).sum())
    caption = f"difference: {counted(wrong, 'cell')}" if wrong else "no difference"
    mark = centre_of(fault_cell, wanted.shape, owners is not None) if fault_cell else None
    caption += ", the first marked by a circle" * (mark is not None)
    pictures = (
        ("wanted", draw_counts(wanted, owners), None),
        ("computed", draw_counts(computed, owners), None),
        (caption, draw_difference(computed, wanted, owners), mark),
    )
    return Panel(title, pictures)


def _title(audit: Audit, computed: Computed) -> str:
    """Returns the tensor and head of a matrix, and how many other heads are equal."""
    work = audit.case.work
    side = "KV head" if computed.tensor in ("dk", "dv") else "head"
    row = f" of batch row {computed.batch}" if work.batch > 1 else ""
    others = f", equal to {computed.lanes - 1} more" if computed.lanes > 1 else ""
    return f"{computed.tensor} of {side} {computed.head}{row}{others}"


def _first_fault(audit: Audit, computed: Computed) -> Cell | None:
    """Returns the cell of the first wrong pair of a matrix, if a fault names one."""
    rows, columns = computed.matrix.shape
    work, lane = audit.case.work, (computed.tensor, computed.batch, computed.head)
    for fault in audit.faults:
        pair = fault.query, fault.key
        if (fault.tensor, fault.batch, fault.head) == lane and None not in pair:
            return int(pair[0] or 0) * rows // work.seq, int(pair[1] or 0) * columns // work.kv_seq
    return None


def _pooling(audit: Audit) -> str:
    """Returns a sentence on the number of pairs per cell; "" if each pair has a cell."""
    work, wanted = audit.case.work, audit.report.wanted
    if wanted is None or wanted.shape == (work.seq, work.kv_seq):
        return ""
    return f"A cell is the average of {work.seq * work.kv_seq / wanted.size:.3g} pairs."
