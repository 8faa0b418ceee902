"""recover(plan)             recovers the loops of a plan from its rows, and checks the loops.
recover_expansion(plan)   also returns the rows that the loops expand to.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from ringloom.planner.cached import cached_on_plan
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.loops.check import check
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import (
    Attend,
    Exchange,
    Expr,
    Loops,
    Part,
    Return,
    Send,
    Start,
    Statement,
    When,
    walk_nodes,
)
from ringloom.planner.loops.naming import Group, Naming
from ringloom.planner.loops.pieces import group_pieces
from ringloom.planner.loops.statements import Clusters
from ringloom.planner.loops.walk import Reading, Record

MOST_STATEMENTS = 64  # of a regular plan
ORDER = (Start, Exchange, Return, Send, Attend)


def recover(plan: Plan) -> Loops:
    """Returns the loop form of a plan after checking that it expands to the plan's rows.

    Raises PlanError with the reason if the plan is irregular: its rows follow no rule, need more
    than 64 statements, or need a list of ranks per step.
    """
    return recover_expansion(plan).loops


@cached_on_plan
def recover_expansion(plan: Plan) -> Expansion:
    """Returns the expanded loop form of a plan; raises PlanError as `recover` does.

    Pieces that travel separately are values with names of their own.
    """
    reading = Reading(plan, group_pieces(plan))
    naming = Naming(reading)
    statements: list[Statement] = [*naming.starts, *reading.exchanges, *reading.returns]
    for group, items in naming.groups():
        new_statements = _fit(reading, group, items) or _fit_stepwise(reading, group, items)
        if not new_statements:
            raise PlanError("its loops would need a list of ranks per step")
        statements += new_statements
    ordered = sorted(fold_repeats(statements), key=_sort_key)
    if len(ordered) > MOST_STATEMENTS:
        raise PlanError(
            f"its loops would have {len(ordered)} statements, more than {MOST_STATEMENTS}"
        )
    return check(Loops(reading.mesh, len(plan.steps), tuple(ordered)), plan)


def _fit(reading: Reading, group: Group, items: list[Record]) -> list[Statement]:
    return Clusters(group, items, reading.mesh, reading.coordinates).best()


def _fit_stepwise(reading: Reading, group: Group, items: list[Record]) -> list[Statement]:
    """Returns statements for the longest prefix of the steps that fits, then for the others."""
    steps, statements = sorted({i.t for i in items}), list[Statement]()
    while steps:
        covered, failing = 1, len(steps) + 1  # numbers of steps that fit, and that do not fit
        while failing - covered > 1:
            n = (covered + failing) // 2
            part = [i for i in items if steps[0] <= i.t <= steps[n - 1]]
            covered, failing = (n, failing) if _fit(reading, group, part) else (covered, n)
        part = [i for i in items if steps[0] <= i.t <= steps[covered - 1]]
        new_statements = _fit(reading, group, part)
        if not new_statements or len(statements) > MOST_STATEMENTS:
            return []
        statements, steps = [*statements, *new_statements], steps[covered:]
    return statements


def _sort_key(s: Statement) -> tuple[int, int, str, tuple[bool, ...]]:
    """Returns a key that sorts by kind, first step and name, and slices after their values."""
    has_slices = tuple(p.pieces is not None for p in walk_nodes(Part, s))
    return ORDER.index(type(s)), s.when.first, getattr(s, "name", ""), has_slices


def fold_repeats(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Joins equal statements at equal distances into one statement with gaps."""
    by_shape = defaultdict[Statement, list[Statement]](list)
    for s in statements:
        depends_on_step = any(e.step for e in walk_nodes(Expr, s)) or s.when.guard.tabled
        length = s.when.last - s.when.first
        when = s.when if depends_on_step else replace(s.when, first=length, last=0)
        by_shape[replace(s, when=when)].append(s)
    for group in by_shape.values():
        group.sort(key=lambda s: s.when.first)
        gaps = {b.when.first - a.when.first for a, b in pairwise(group)}
        if len(gaps) != 1:
            yield from group
            continue
        first, last = group[0].when, group[-1].when
        width = first.last - first.first + 1
        when = When(first.first, last.last, gaps.pop(), width, first.guard)
        yield replace(group[0], when=when)
