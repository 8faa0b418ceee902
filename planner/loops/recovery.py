"""recover(plan)             recovers the loops of a plan from its rows, and checks them.
recover_expansion(plan)   recovers them with the rows that they expand to.
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
from ringloom.planner.loops.pieces import groups
from ringloom.planner.loops.statements import Clusters
from ringloom.planner.loops.walk import Reading, Record

MOST = 64  # most statements of a regular plan
ORDER = (Start, Exchange, Return, Send, Attend)


def recover(plan: Plan) -> Loops:
    """Returns the loop form of a plan, checked to expand to the plan's rows.

    Raises PlanError with the reason if the plan is irregular: its rows follow no rule, or need more
    than 64 statements, or a list of ranks per step.
    """
    return recover_expansion(plan).loops


@cached_on_plan
def recover_expansion(plan: Plan) -> Expansion:
    """Returns the expanded loop form of a plan; raises PlanError as `recover` does.

    Pieces that travel separately have their own names.
    """
    reading = Reading(plan, groups(plan))
    naming = Naming(reading)
    statements: list[Statement] = [*naming.starts, *reading.exchanges, *reading.returns]
    for group, items in naming.groups():
        said = _statements(reading, group, items) or _stepwise_statements(reading, group, items)
        if not said:
            raise PlanError("its loops would need a list of ranks per step")
        statements += said
    made = sorted(fold_repeats(statements), key=_order)
    if len(made) > MOST:
        raise PlanError(f"its loops would have {len(made)} statements, more than {MOST}")
    return check(Loops(reading.mesh, len(plan.steps), tuple(made)), plan)


def _statements(reading: Reading, group: Group, items: list[Record]) -> list[Statement]:
    return Clusters(group, items, reading.mesh, reading.coordinates).best()


def _stepwise_statements(reading: Reading, group: Group, items: list[Record]) -> list[Statement]:
    """Returns statements for as many steps as possible at once, then for the remaining steps."""
    steps, made = sorted({i.t for i in items}), list[Statement]()
    while steps:
        few, many = 1, len(steps) + 1  # steps that statements can cover, and cannot
        while many - few > 1:
            n = (few + many) // 2
            part = [i for i in items if steps[0] <= i.t <= steps[n - 1]]
            few, many = (n, many) if _statements(reading, group, part) else (few, n)
        said = _statements(reading, group, [i for i in items if steps[0] <= i.t <= steps[few - 1]])
        if not said or len(made) > MOST:
            return []
        made, steps = [*made, *said], steps[few:]
    return made


def _order(s: Statement) -> tuple[int, int, str, tuple[bool, ...]]:
    """Sorts by kind, first step and name; whole values before slices of them."""
    sliced = tuple(p.pieces is not None for p in walk_nodes(Part, s))
    return ORDER.index(type(s)), s.when.first, getattr(s, "name", ""), sliced


def fold_repeats(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Joins equal statements at equal distances into one statement with gaps."""
    alike = defaultdict[Statement, list[Statement]](list)
    for s in statements:
        moves = any(e.step for e in walk_nodes(Expr, s)) or s.when.guard.tabled
        when = s.when if moves else replace(s.when, first=s.when.last - s.when.first, last=0)
        alike[replace(s, when=when)].append(s)
    for group in alike.values():
        group.sort(key=lambda s: s.when.first)
        gaps = {b.when.first - a.when.first for a, b in pairwise(group)}
        if len(gaps) != 1:
            yield from group
            continue
        first, last = group[0].when, group[-1].when
        width = first.last - first.first + 1
        when = When(first.first, last.last, gaps.pop(), width, first.guard)
        yield replace(group[0], when=when)
