"""Slices: rectangles of queries and keys, full or cut by diagonals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import parse_tokens, require_integer
from ringloom.planner.masks.areas import LIMIT
from ringloom.planner.masks.mask import Allowed, Mask, Names, Packed, no_documents_error
from ringloom.planner.masks.plain import Causal, Full
from ringloom.planner.masks.regions import FAR, MOST, Ints, Region, first_overlap
from ringloom.planner.parse import from_json

Row = tuple[int, int, int, int, str]
KINDS = {  # True for a lower bound of j - i, and for an upper bound
    "full": (False, False),
    "causal": (False, True),
    "inverse": (True, False),
    "bi": (True, True),
}
EXPECTED = 'expected JSON [[q0, q1, k0, k1, "causal"], ...]'


@dataclass(frozen=True, repr=False)
class Slices(Mask):
    """For each row (q0, q1, k0, k1, kind), queries q0..q1 - 1 see keys among k0..k1 - 1.

    full      all keys
    causal    j - i <= k1 - q1: the last query sees all keys, each earlier query one key fewer
    inverse   j - i >= k0 - q0: the first query sees all keys, each later query one key fewer
    bi        both bounds

    The slices are those of MagiAttention. Query positions are aligned, so some are negative if
    there are more queries than keys. Raises PlanError for unknown kinds, for ends before starts,
    and for rows that overlap.
    """

    forms = ("slices:Q0,Q1,K0,K1,KIND", "slices@FILE")
    restarts = True

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if len(self.rows) > MOST:
            raise PlanError(f"Slices takes at most {MOST} rows, not {len(self.rows)}")
        rows = tuple(_require_row(number, row) for number, row in enumerate(self.rows))
        object.__setattr__(self, "rows", rows)
        if not rows:
            raise PlanError("Slices needs at least one row (q0, q1, k0, k1, kind)")
        if pair := first_overlap(self._boxes()):
            a, b = pair
            raise PlanError(f"slices {a} and {b} overlap: {_text(rows[a])} and {_text(rows[b])}")

    @property
    def expression(self) -> str:
        if len(self.rows) > 1:
            return "left | right"
        ((q0, q1, k0, k1, kind),) = self.rows
        if kind == "full":
            return f"(i >= {q0}) & (i < {q1}) & (j >= {k0}) & (j < {k1})"
        has_lower, has_upper = KINDS[kind]
        bounds = [f"(j - i >= {k0 - q0})"] * has_lower + [f"(j - i <= {k1 - q1})"] * has_upper
        return " & ".join(["box", *bounds])

    @property
    def names(self) -> Names:
        """The two halves of several rows, or the rectangle of a single row that a diagonal cuts."""
        if len(self.rows) > 1:
            half = len(self.rows) // 2
            return {"left": Slices(self.rows[:half]), "right": Slices(self.rows[half:])}
        (row,) = self.rows
        return {} if row[4] == "full" else {"box": Slices(((*row[:4], "full"),))}

    def region(self) -> Region:
        return Region.of(self._boxes())

    def _boxes(self) -> Ints:
        """Returns each row as a box cut by a band: [rows, 6]."""
        boxes = []
        for q0, q1, k0, k1, kind in self.rows:
            has_lower, has_upper = KINDS[kind]
            low, high = k0 - q0 if has_lower else -FAR, k1 - q1 if has_upper else FAR
            boxes.append((q0, q1, k0, k1, low, high))
        return np.array(boxes, np.int64).reshape(-1, 6)

    def check(self, seq: int, kv_seq: int) -> None:
        first = kv_seq - seq
        for number, (q0, q1, _, k1, _) in enumerate(self.rows):
            if k1 > kv_seq:
                raise PlanError(f"slice {number} ends at key {k1}, but there are {kv_seq}")
            if q0 < first or q1 > kv_seq:
                raise PlanError(
                    f"slice {number} has queries {q0} to {q1}, but the positions of {seq} queries"
                    f" aligned with {kv_seq} keys are {first} to {kv_seq}"
                )

    def packed(self) -> Packed:
        """Returns one document per row, if all rows are full or all are causal."""
        q, k = ([*(row[at] for row in self.rows), self.rows[-1][at + 1]] for at in (0, 2))
        ends, kinds = [(row[1], row[3]) for row in self.rows], {row[4] for row in self.rows}
        if ends != [*zip(q[1:], k[1:], strict=True)] or kinds not in ({"full"}, {"causal"}):
            raise no_documents_error(self)
        causal = kinds == {"causal"}
        return Packed((np.array(q), np.array(k)), right=0 if causal else FAR, from_ends=causal)

    @classmethod
    def parse(cls, text: str) -> Mask:
        rows = list[Any]()
        for row in text.split("/"):
            cells = [cell.strip() for cell in row.split(",")]
            rows.append((*map(_parse_position, cells[:4]), *cells[4:]))
        return cls(tuple(rows))

    @classmethod
    def parse_file(cls, text: str) -> Mask:
        rows = from_json(text, EXPECTED)
        if not isinstance(rows, list):
            raise PlanError(EXPECTED)
        return cls(tuple(rows))

    def __str__(self) -> str:
        return "slices:" + "/".join(map(_text, self.rows))


def _require_row(number: int, row: Sequence[object]) -> Row:
    """Returns a row of integers; raises PlanError for an invalid row."""
    if not isinstance(row, Sequence) or len(row) != 5 or row[4] not in [*KINDS]:
        kinds = ", ".join(KINDS)
        raise PlanError(
            f"slice {number} must be (q0, q1, k0, k1, kind) with kind one of {kinds}, not"
            f" {brief(row)}"
        )
    least = -LIMIT, -LIMIT, 0, 0
    q0, q1, k0, k1 = (
        require_integer(f"slice {number}:", position, low, LIMIT)
        for position, low in zip(row[:4], least, strict=True)
    )
    if q1 < q0 or k1 < k0:
        raise PlanError(f"slice {number} ends before it starts: {brief(row)}")
    return q0, q1, k0, k1, str(row[4])


def _parse_position(text: str) -> int:
    """Parses a position; query positions may be negative."""
    return -parse_tokens(text[1:]) if text.startswith("-") else parse_tokens(text)


def _text(row: Row) -> str:
    return ",".join(map(str, row))


@dataclass(eq=False)
class _Run:
    """Consecutive queries, the last of which sees the keys low..high - 1.

    From each query to the next, `low` increases by a constant 0 or 1, and so does `high`.
    """

    first: int  # query
    start: int  # first key of the first query
    low: int
    high: int
    steps: tuple[int, int] | None = None

    def extend(self, low: int, high: int) -> bool:
        """Appends the next query if its keys continue the run; returns False otherwise."""
        steps = low - self.low, high - self.high
        if steps != (self.steps or steps) or not {*steps} <= {0, 1}:
            return False
        self.low, self.high, self.steps = low, high, steps
        return True


def covering_mask(rows: Iterable[Allowed], first: int, kv_seq: int) -> Mask:
    """Returns the mask with exactly the given pairs: Full or Causal if possible, else Slices.

    rows: for each query, bool [kv_seq], True for the keys that the query sees. The first query has
    the aligned position `first`. Adjacent queries form a slice if the first keys of their ranges
    are equal or increase by 1 from query to query, and so do the last keys.
    """
    runs, done, last = list[_Run](), list[Row](), first
    for last, row in enumerate(rows, first):
        edges = np.flatnonzero(np.diff(row, prepend=False, append=False)).reshape(-1, 2)
        continued = list[_Run]()
        for low, high in edges.tolist():
            run = next((r for r in runs if r not in continued and r.extend(low, high)), None)
            continued.append(run or _Run(last, low, low, high))
        done += [_slice(run, last) for run in runs if run not in continued]
        runs = continued
    done += [_slice(run, last + 1) for run in runs]
    match done:
        case [(q0, q1, 0, k1, kind)] if (q1, k1) == (kv_seq, kv_seq):
            if kind == "full" and q0 == first:
                return Full()
            if kind == "causal" and q0 == max(first, 0):
                return Causal()
    return Slices(tuple(sorted(done)) or ((first, first, 0, 0, "full"),))


def _slice(run: _Run, end: int) -> Row:
    steps = tuple(map(bool, run.steps or (0, 0)))
    (kind,) = (kind for kind, bounds in KINDS.items() if bounds == steps)
    return run.first, end, run.start, run.high, kind
