"""Published numbers and ours: lines, tables of lines, and the agreement of a table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Line:
    """One published number and ours; None if the paper or the model has no number.

    `digits`: number of decimals that the paper prints. `arithmetic`: our number follows from
    numbers or formulas of the paper, without a plan or a model, so it checks our copy and predicts
    nothing. `points`: the numbers are percentages, whose error is their difference (1% and 3%
    differ by 2 points). `context`: the setting is not fully known.
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
        """Returns True if the error counts: there is a number, and it is a prediction."""
        numbers = self.published is not None or self.ours is not None
        return numbers and not self.arithmetic and not self.context

    @property
    def error(self) -> float | None:
        """Returns ours / published - 1, or ours - published in points; None if one is missing."""
        if self.points and self.published is not None and self.ours is not None:
            return (self.ours - self.published) / 100
        if self.published is None or self.ours is None or not self.published:
            return None if self.published is None or self.ours != self.published else 0.0
        return self.ours / self.published - 1

    @property
    def equal(self) -> bool:
        """Returns True if both numbers print alike."""
        if self.published is None or self.ours is None:
            return False
        return f"{self.ours:.{self.digits}f}" == f"{self.published:.{self.digits}f}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = "what", "published", "ours", "error", "equal", "note"
        return {name: getattr(self, name) for name in (*names, "arithmetic", "points", "context")}


@dataclass(frozen=True)
class Summary:
    """Agreement of a table: errors, number of rows printed alike, Spearman's correlation.

    Only `rows` counts lines of arithmetic and context; nothing else uses them.
    """

    rows: int
    compared: int
    equal: int
    mean_error: float | None
    worst_error: float | None
    rank_correlation: float | None


@dataclass(frozen=True)
class Table:
    """Lines of one published table or claim; `note`: assumptions and differences."""

    title: str
    lines: Sequence[Line]
    note: str = ""

    @property
    def points(self) -> bool:
        """Returns True if errors are in percentage points, which all or none must be."""
        (points,) = {line.points for line in self.lines if line.counted} or {False}
        return points

    @property
    def summary(self) -> Summary:
        """Returns mean and worst absolute error, and the rank correlation of the columns."""
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
    """Decorates a function that yields lines, so that it returns a table."""

    def decorate(lines: Callable[[], Iterable[Line]]) -> MakeTable:
        return wraps(lines)(lambda: Table(title, tuple(lines()), note))

    return decorate


def not_compared(paper: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Returns a table of what a paper gives no numbers for; rows: (what, why)."""
    return Table(f"{paper}: not compared", [Line(what, None, None, 0, why) for what, why in rows])


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns the rank correlation, ties at mean rank; None for under three pairs or constants."""
    if len(pairs) < 3:
        return None
    columns = np.array(pairs, np.float64).T
    one, other = columns[:, :, None], columns[:, None, :]
    ranks = (other < one).sum(axis=2) + ((other == one).sum(axis=2) - 1) / 2
    return float(np.corrcoef(ranks)[0, 1]) if ranks.std(axis=1).all() else None
