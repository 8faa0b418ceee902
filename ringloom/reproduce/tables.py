"""Published numbers beside ours: lines, tables of lines, and how well a table agrees."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Line:
    """One published number beside ours; None where the paper, or the model, gives none.

    `digits` are the decimals that the paper prints, and so those that can be compared. A line is
    `arithmetic` if ours follows from the paper's own numbers or formulas, without a plan or a
    model: it shows that they were copied right, and predicts nothing. Numbers in `points` are
    percentages, whose error is their difference: 1% against 3% is off by 2 points. A line of
    `context` has a setting that is not known in full.
    """

    what: str
    published: float | None
    ours: float | None
    digits: int = 2
    note: str = ""
    arithmetic: bool = False
    points: bool = False
    context: bool = False

    @property
    def counted(self) -> bool:
        """True where the error counts: not of arithmetic, of context, nor without any number."""
        numbers = self.published is not None or self.ours is not None
        return numbers and not self.arithmetic and not self.context

    @property
    def error(self) -> float | None:
        """ours / published - 1, in points ours - published; None where either is missing."""
        if self.points and self.published is not None and self.ours is not None:
            return (self.ours - self.published) / 100
        if self.published is None or self.ours is None or not self.published:
            return None if self.published is None or self.ours != self.published else 0.0
        return self.ours / self.published - 1

    @property
    def equal(self) -> bool:
        """True where both are printed alike."""
        if self.published is None or self.ours is None:
            return False
        return f"{self.ours:.{self.digits}f}" == f"{self.published:.{self.digits}f}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = "what", "published", "ours", "error", "equal", "note"
        return {name: getattr(self, name) for name in (*names, "arithmetic", "points", "context")}


@dataclass(frozen=True)
class Summary:
    """Agreement of a table: errors, rows printed alike, Spearman's correlation.

    Arithmetic and context are not compared: `rows` counts them, nothing else does.
    """

    rows: int
    compared: int
    equal: int
    mean_error: float | None
    worst_error: float | None
    rank_correlation: float | None


@dataclass(frozen=True)
class Table:
    """Lines of one published table or claim; `note` says what was assumed and what differs."""

    title: str
    lines: Sequence[Line]
    note: str = ""

    @property
    def points(self) -> bool:
        """True where errors that are compared are in percentage points: all are, or none."""
        (points,) = {line.points for line in self.lines if line.counted} or {False}
        return points

    @property
    def summary(self) -> Summary:
        """Mean and worst absolute error, and the rank correlation of the two columns."""
        compared = [line for line in self.lines if line.error is not None and line.counted]
        both = [
            (line.error, line.published, line.ours)
            for line in compared
            if line.error is not None and line.published is not None and line.ours is not None
        ]
        sizes = [abs(error) for error, *_ in both]
        return Summary(
            rows=len(self.lines),
            compared=len(both),
            equal=sum(line.equal for line in compared),
            mean_error=float(np.mean(sizes)) if sizes else None,
            worst_error=max(sizes, default=None),
            rank_correlation=spearman([(published, ours) for _, published, ours in both]),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "title": self.title,
            "points": self.points,
            "rows": [line.as_dict() for line in self.lines],
            "summary": asdict(self.summary),
            "note": self.note,
        }


MakeTable = Callable[[], Table]


def table(title: str, note: str = "") -> Callable[[Callable[[], Iterable[Line]]], MakeTable]:
    """Decorate a function that yields the lines of a table: it returns the table."""

    def decorate(lines: Callable[[], Iterable[Line]]) -> MakeTable:
        return wraps(lines)(lambda: Table(title, tuple(lines()), note))

    return decorate


def not_compared(paper: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Lists tables and figures of a paper without numbers to compare: (what, why)."""
    return Table(f"{paper}: not compared", [Line(what, None, None, 0, why) for what, why in rows])


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Rank correlation with ties at their mean rank; None for under three pairs or a constant."""
    if len(pairs) < 3:
        return None
    columns = np.array(pairs, np.float64).T
    one, other = columns[:, :, None], columns[:, None, :]
    ranks = (other < one).sum(axis=2) + ((other == one).sum(axis=2) - 1) / 2
    return float(np.corrcoef(ranks)[0, 1]) if ranks.std(axis=1).all() else None
