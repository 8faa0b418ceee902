"""settled(plan, loops)   the loops and their sums, for targets whose ranks all do the same.

Where some ranks own sums that others send on, all sums for what ranks own stay with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from codegen.lowered.walk import Walk, walk
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import OWN, Attend, Loops, Part, Send, Start, Statement


def settled(plan: Plan, loops: Loops) -> tuple[Loops, Walk]:
    """The loops in which no sums stay where others of the kind go on, and every rectangle.

    Raises PlanError where leaving all sums for what ranks own with them does not help.
    """
    given, walked = walk(plan, loops)
    if not walked.kept:
        return given, walked
    apart = replace(loops, statements=tuple(own_apart(loops.statements)))
    given, walked = walk(plan, apart)
    if walked.kept:
        raise PlanError("sums of which some stay on a rank where others go on")
    return given, walked


def own_apart(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Attends read what ranks own by that name, not by that of what begins to travel.

    Messages of sums for what ranks own are left out.
    """
    for s in statements:
        if isinstance(s, Send) and s.parts[0].value == OWN and s.sums:
            continue
        if not isinstance(s, Attend):
            yield s
            continue
        q, kv = (
            tuple(_owned(p, side, s.when.first, statements) for p in parts)
            for side, parts in (("q", s.q), ("kv", s.kv))
        )
        if (q, kv) == (s.q, s.kv):
            yield s
            continue
        yield Attend(replace(s.when, last=s.when.first), q, kv, s.kind)
        if s.when.last > s.when.first:
            yield replace(s, when=replace(s.when, first=s.when.first + 1))


def _owned(p: Part, side: str, t: int, statements: Sequence[Statement]) -> Part:
    """A part of a value that begins in this step as what ranks own, by that name."""
    starts = (s for s in statements if isinstance(s, Start) and s.when.on(t))
    own = any((s.name, s.part) == (p.value, Part(OWN)) and s.side == side for s in starts)
    return replace(p, value=OWN) if own else p
