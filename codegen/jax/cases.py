"""The attends of some steps as cases of which a device has at most one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codegen.jax.trace import Rectangles, Trace
from codegen.jax.values import Key, Values
from codegen.jax.words import Domain, Flags, Names, both, conditions
from planner.errors import PlanError
from planner.loops.form import Attend, Guard, Ints, Loops

Slice = tuple[int, int, int]  # first and last piece, of so many
MOST = 4  # cases of one statement
WHOLE = "whole"  # all pieces of both values, whatever the rectangle is: a kind of masked tile
LEFT_OPEN = ("end", "other", "any")  # kinds that say nothing about all tiles


@dataclass(frozen=True, eq=False)
class Case:
    """A rectangle of pieces: which, of what kind, where it is computed, and how that is said."""

    q: Key
    kv: Key
    rows: Slice
    cols: Slice
    kind: str
    active: Flags  # [steps, ranks]
    guard: Guard
    choice: tuple[int, int, int] | None = None  # a coordinate, first and last value
    statement: int = -1


@dataclass(frozen=True, eq=False)
class Group:
    """Cases that exclude each other and add to the same sums."""

    cells: tuple[Key, ...]
    cases: tuple[Case, ...]

    @property
    def always(self) -> bool:
        """True if every device has a case in every step."""
        return bool(np.logical_or.reduce([c.active for c in self.cases]).all())


def groups(
    loops: Loops, rows: Trace, made: Values, steps: Sequence[int], sides: Sequence[str]
) -> list[Group]:
    """The attends that run in these steps."""
    open_groups: list[tuple[tuple[Key, ...], list[Case]]] = []
    for n, s in enumerate(loops.statements):
        if not isinstance(s, Attend) or not any(s.when.on(t) for t in steps):
            continue
        cells = tuple(made.cells[n, side] for side in sides)
        for case in _cases(n, s, loops, rows, steps):
            for other, cases in open_groups:
                if other == cells and not any((case.active & c.active).any() for c in cases):
                    cases.append(case)
                    break
            else:
                open_groups.append((cells, [case]))
    return [Group(cells, tuple(cases)) for cells, cases in open_groups]


def _cases(n: int, s: Attend, loops: Loops, rows: Trace, steps: Sequence[int]) -> list[Case]:
    """A statement as cases of fixed pieces."""
    at = loops.coordinates()
    first = np.full((len(steps), len(at), 4), -1)
    for i, t in enumerate(steps):
        if isinstance(r := rows.rows[t].get(n), Rectangles):
            first[i, r.rank] = r.pieces
    active = first[:, :, 0] >= 0
    different = np.unique(first[active], axis=0)
    q, kv = (s.q[0].value, "q"), (s.kv[0].value, "kv")
    if len(s.q) + len(s.kv) > 2 or len(different) > MOST:
        everything, keys = ((0, rows.widths[v] - 1, rows.widths[v]) for v in (q, kv))
        return [Case(q, kv, everything, keys, WHOLE, active, s.when.guard, statement=n)]
    made = []
    for ends in different:
        on = active & (first == ends).all(axis=2)
        choice = None if len(different) == 1 else _choice(on, active, at)
        rows_, cols = (
            (int(a), int(b), rows.widths[v]) for a, b, v in ((*ends[:2], q), (*ends[2:], kv))
        )
        kind = "masked" if s.kind in LEFT_OPEN else s.kind
        made.append(Case(q, kv, rows_, cols, kind, on, s.when.guard, choice, n))
    return made


def _choice(on: Flags, active: Flags, at: Ints) -> tuple[int, int, int]:
    """The coordinate whose values tell a case from the others of its statement."""
    for axis in range(at.shape[1] - 1):
        x = np.broadcast_to(at[:, axis], on.shape)
        low, high = x[on].min(), x[on].max()
        if np.array_equal(active & (x >= low) & (x <= high), on):
            return axis, int(low), int(high)
    raise PlanError("rectangles whose shapes follow no coordinate")


def condition(case: Case, names: Names, loops: Loops, on: Domain) -> str:
    """When a device has the case, as text; "" if always on this domain."""
    texts = conditions(case.guard, names, loops, on)
    if case.choice:
        axis, low, high = case.choice
        x = on.coordinates[:, axis]
        ends = (
            (low, high)
            if low == high
            else (None if low == x.min() else low, None if high == x.max() else high)
        )
        name = names.axes[axis]
        texts.append(_compare(name, *ends))
    return both(texts) if texts else ""


def _compare(name: str, low: int | None, high: int | None) -> str:
    if low == high:
        return f"{name} == {low}"
    parts = [f"{name} >= {low}"] * (low is not None) + [f"{name} <= {high}"] * (high is not None)
    return both(parts)
