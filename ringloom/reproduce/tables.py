"""Tables of published numbers and ours, with summaries of their errors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Line:
    """A published number and ours; None if the paper or the model has no number.

    `digits`: number of decimals that the paper prints. `arithmetic`: our number follows from
    numbers or formulas of the paper, without a plan or a model, so it predicts nothing. `points`:
    the numbers are percentages, and their error is the difference (2 points between 1% and 3%).
    `context`: the line only gives context, because its setting is not fully known.
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
        """Returns True if summaries include the line: it has a number, which is a prediction."""
        numbers = self.published is not None or self.ours is not None
        return numbers and not self.arithmetic and not self.context

    @property
    def error(self) -> float | None:
        """Returns ours / published - 1, or the difference in points; None without both numbers."""
        if self.points and self.published is not None and self.ours is not None:
            return (self.ours - self.published) / 100
        if self.published is None or self.ours is None or not self.published:
            return None if self.published is None or self.ours != self.published else 0.0
        return self.ours / self.published - 1

    @property
    def equal(self) -> bool:
        """Returns True if both numbers have the same printed digits."""
        if self.published is None or self.ours is None:
            return False
        return f"{self.ours:.{self.digits}f}" == f"{self.published:.{self.digits}f}"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        names = "what", "published", "ours", "error", "equal", "note"
        return {name: getattr(self, name) for name in (*names, "arithmetic", "points", "context")}


@dataclass(frozen=True)
class Summary:
    """The agreement of a table; lines of arithmetic and context count only in `rows`.

    `equal`: number of rows with the same printed digits; `rank_correlation`: Spearman's.
    """

    rows: int
    compared: int
    equal: int
    mean_error: float | None
    worst_error: float | None
    rank_correlation: float | None


@dataclass(frozen=True)
class Table:
    """The lines of a published table or claim; `note` states assumptions and differences."""

    title: str
    lines: Sequence[Line]
    note: str = ""

    @property
    def points(self) -> bool:
        """Returns True if all errors are in percentage points; raises ValueError for a mixture."""
        (points,) = {line.points for line in self.lines if line.counted} or {False}
        return points

    @property
    def summary(self) -> Summary:
        """Returns mean and worst absolute error, and the rank correlation of the columns."""
        compared = [line for line in self.lines if line.error is not None and line.counted]
        errors = [abs(line.error) for line in compared if line.error is not None]
        pairs = [
            (line.published, line.ours)
            for line in compared
            if line.published is not None and line.ours is not None
        ]
        return Summary(
            rows=len(self.lines),
            compared=len(compared),
            equal=sum(line.equal for line in compared),
            mean_error=float(np.mean(errors)) if errors else None,
            worst_error=max(errors, default=None),
            rank_correlation=spearman(pairs),
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {
            "title": self.title,
            "points": self.points,
            "rows": [line.as_dict() for line in self.lines],
            "summary": asdict(self.summary),
            "note": self.note,
        }


MakeTable = Callable[[], Table]


def table(title: str, note: str = "") -> Callable[[Callable[[], Iterable[Line]]], MakeTable]:
    """Decorates a function that yields lines so that it returns a table."""

    def decorate(lines: Callable[[], Iterable[Line]]) -> MakeTable:
        return wraps(lines)(lambda: Table(title, tuple(lines()), note))

    return decorate


def not_compared(paper: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Returns a table of results without published numbers; rows: (result, reason)."""
    return Table(f"{paper}: not compared", [Line(name, None, None, 0, why) for name, why in rows])


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns the rank correlation; None for fewer than three pairs or a constant column.

    Equal values have their mean rank.
    """
    if len(pairs) < 3:
        return None
    columns = np.array(pairs, np.float64).T
    value, others = columns[:, :, None], columns[:, None, :]
    ranks = (others < value).sum(axis=2) + ((others == value).sum(axis=2) - 1) / 2
    return float(np.corrcoef(ranks)[0, 1]) if ranks.std(axis=1).all() else None
