"""Slices: rectangles of queries and keys, whole or cut by diagonals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import tokens, whole
from ringloom.planner.masks.areas import LIMIT
from ringloom.planner.masks.mask import Allowed, Mask, Names, Packed, undivided
from ringloom.planner.masks.plain import Causal, Full
from ringloom.planner.masks.regions import FAR, MOST, Ints, Region, first_overlap
from ringloom.planner.parse import from_json

Row = tuple[int, int, int, int, str]
KINDS = {  # whether j - i has a least value, and a largest
    "full": (False, False),
    "causal": (False, True),
    "inverse": (True, False),
    "bi": (True, True),
}
EXPECTED = 'expected JSON [[q0, q1, k0, k1, "causal"], ...]'


@dataclass(frozen=True, repr=False)
class Slices(Mask):
    """Of each row (q0, q1, k0, k1, kind), queries q0..q1 - 1 meet keys k0..k1 - 1 by its kind.

    full      all of them
    causal    j - i <= k1 - q1: the last query meets all keys, each one before it a key less
    inverse   j - i >= k0 - q0: the first query meets all keys, each one after it a key less
    bi        both

    Query positions are aligned, some negative where there are more queries than keys. Raises
    PlanError for unknown kinds, for ends before beginnings, and for two rows that share a pair,
    with their numbers (slices of MagiAttention).
    """

    forms = ("slices:Q0,Q1,K0,K1,KIND", "slices@FILE")
    restarts = True

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if len(self.rows) > MOST:
            raise PlanError(f"Slices takes at most {MOST} rows, not {len(self.rows)}")
        rows = tuple(_row(number, row) for number, row in enumerate(self.rows))
        object.__setattr__(self, "rows", rows)
        if not rows:
            raise PlanError("Slices needs a row (q0, q1, k0, k1, kind) at least")
        if pair := first_overlap(self._boxes()):
            one, other = pair
            raise PlanError(
                f"slices {one} and {other} overlap: {_text(rows[one])} and {_text(rows[other])}"
            )

    @property
    def expression(self) -> str:
        if len(self.rows) > 1:
            return "left | right"
        ((q0, q1, k0, k1, kind),) = self.rows
        if kind == "full":
            return f"(i >= {q0}) & (i < {q1}) & (j >= {k0}) & (j < {k1})"
        least, largest = KINDS[kind]
        bands = [f"(j - i >= {k0 - q0})"] * least + [f"(j - i <= {k1 - q1})"] * largest
        return " & ".join(["box", *bands])

    @property
    def names(self) -> Names:
        """Each half of the rows, or the rectangle of a row that a diagonal cuts."""
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
            least, largest = KINDS[kind]
            low, high = k0 - q0 if least else -FAR, k1 - q1 if largest else FAR
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
        """Returns documents where each row is one, all of them full or all causal."""
        q, k = ([*(row[at] for row in self.rows), self.rows[-1][at + 1]] for at in (0, 2))
        ends, kinds = [(row[1], row[3]) for row in self.rows], {row[4] for row in self.rows}
        if ends != [*zip(q[1:], k[1:], strict=True)] or kinds not in ({"full"}, {"causal"}):
            raise undivided(self)
        causal = kinds == {"causal"}
        return Packed((np.array(q), np.array(k)), right=0 if causal else FAR, from_ends=causal)

    @classmethod
    def parse(cls, text: str) -> Mask:
        rows = list[Any]()
        for row in text.split("/"):
            cells = [cell.strip() for cell in row.split(",")]
            rows.append((*map(_position, cells[:4]), *cells[4:]))
        return cls(tuple(rows))

    @classmethod
    def parse_file(cls, text: str) -> Mask:
        rows = from_json(text, EXPECTED)
        if not isinstance(rows, list):
            raise PlanError(EXPECTED)
        return cls(tuple(rows))

    def __str__(self) -> str:
        return "slices:" + "/".join(map(_text, self.rows))


def _row(number: int, row: Sequence[object]) -> Row:
    """Returns a row with whole numbers; raises PlanError for one that means nothing."""
    if not isinstance(row, Sequence) or len(row) != 5 or row[4] not in [*KINDS]:
        kinds = ", ".join(KINDS)
        raise PlanError(
            f"slice {number} is not (q0, q1, k0, k1, kind) with a kind of {kinds}: {brief(row)}"
        )
    least = -LIMIT, -LIMIT, 0, 0
    q0, q1, k0, k1 = (
        whole(f"slice {number}:", position, low, LIMIT)
        for position, low in zip(row[:4], least, strict=True)
    )
    if q1 < q0 or k1 < k0:
        raise PlanError(f"slice {number} ends before it begins: {brief(row)}")
    return q0, q1, k0, k1, str(row[4])


def _position(text: str) -> int:
    """Returns a position; those of queries may be negative."""
    return -tokens(text[1:]) if text.startswith("-") else tokens(text)


def _text(row: Row) -> str:
    return ",".join(map(str, row))


@dataclass(eq=False)
class _Run:
    """Keys low..high - 1 of a query, and those of the queries before it that they go on from.

    From one query to the next, `low` stays or goes up by one, always alike, and so does `high`.
    """

    first: int  # query
    start: int  # key
    low: int
    high: int
    steps: tuple[int, int] | None = None

    def goes_on(self, low: int, high: int) -> bool:
        """Takes the next query's keys if they fit."""
        steps = low - self.low, high - self.high
        if steps != (self.steps or steps) or not {*steps} <= {0, 1}:
            return False
        self.low, self.high, self.steps = low, high, steps
        return True


def covering(rows: Iterable[Allowed], first: int, kv_seq: int) -> Mask:
    """Returns the mask of exactly these pairs: Full or Causal if it is, else slices.

    rows: the keys that each query meets, bool [kv_seq]; the first query is at aligned position
    `first`. Queries whose keys are alike, or go up by one at an end, make one slice.
    """
    runs, done, last = list[_Run](), list[Row](), first
    for last, row in enumerate(rows, first):
        edges = np.flatnonzero(np.diff(row, prepend=False, append=False)).reshape(-1, 2)
        kept = list[_Run]()
        for low, high in edges.tolist():
            run = next((r for r in runs if r not in kept and r.goes_on(low, high)), None)
            kept.append(run or _Run(last, low, low, high))
        done += [_slice(run, last) for run in runs if run not in kept]
        runs = kept
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
    (kind,) = (kind for kind, cut in KINDS.items() if cut == steps)
    return run.first, end, run.start, run.high, kind
