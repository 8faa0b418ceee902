"""Lifetimes of what a pass holds, in quarters of steps, and names for it.

Messages read and attends begin at 4 t, the start of step t; inputs arrive and sums are added at
4 t + 2, its end; before the next step, at 4 t + 3, values that begin then are given their names.
What lives after another may have its name, as the copies around a ring do, and where a message
takes sums away, the next ones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from codegen.lowered.walk import Cell, Walk
from planner.errors import PlanError
from planner.loops.form import (
    OWN,
    Attend,
    Exchange,
    Loops,
    Part,
    Send,
    Start,
    Statement,
)

Value = tuple[str, str]  # side, name
Span = tuple[int, int]  # quarters of steps
Held = TypeVar("Held", bound=tuple[str, ...])


def input_spans(loops: Loops, spare: int = 0) -> dict[Value, Span]:
    """The lifetime of each input; `spare`: steps by which it may be sent on that nobody reads.

    Raises PlanError unless the last copy that came under a name is the one that is read.
    """
    spans, came = dict[Value, Span](), defaultdict[Value, set[int]](set)
    for s in loops.statements:
        if isinstance(s, Send | Exchange):
            came[s.side, s.name] |= {t + 1 for t in s.when.steps}
        elif isinstance(s, Start) and s.part.value != s.name:  # else it goes on with its own value
            came[s.side, s.name] |= {*s.when.steps}
    for s in loops.statements:
        steps = s.when.steps
        late = -1 if isinstance(s, Start) else 0
        for side, part in inputs_read(s):
            later = came[side, part.value]
            if any(later & {*range(t - part.lag + 1, t + 1)} for t in steps):
                raise PlanError("a block is still read when the next one has come")
            _live(spans, (side, part.value), [4 * t + late for t in (steps[0], steps[-1])])
        if isinstance(s, Start | Send | Exchange) and not s.sums:
            late = late or 2
            last = steps[-1] + spare * isinstance(s, Send)
            end = late + isinstance(s, Send)  # what comes has a name even if nobody reads it
            _live(spans, (s.side, s.name), [4 * steps[0] + late, 4 * last + end])
    return spans


def inputs_read(s: Statement) -> Iterator[tuple[str, Part]]:
    """The sides and parts of the inputs that a statement reads."""
    match s:
        case Attend():
            yield from (("q", p) for p in s.q)
            yield from (("kv", p) for p in s.kv)
        case Send() if not s.sums:
            yield from ((s.side, p) for p in s.parts)
        case Start() | Exchange() if not s.sums:
            yield s.side, s.part


def sum_spans(walked: Walk, variable: Callable[[Cell, int], Held]) -> dict[Held, Span]:
    """The lifetime of sums, from a first addition until they leave; by what variable they are in.

    `variable`: of what is added to a cell in a step; what leaves in a step was added before it.
    """
    spans = dict[Held, Span]()
    for _, t, cell in walked.additions():
        _live(spans, variable(cell, t), [4 * t + 2])
    for cell, steps in walked.taken.items():
        for t in steps:
            _live(spans, variable(cell, t - 1), [4 * t])
    for cell, t in walked.kept.items():
        _live(spans, variable((cell[0], OWN), t), [4 * t - 1])  # beside those that others send
    return spans


def _live(spans: dict[Held, Span], held: Held, at: Iterable[int]) -> None:
    """Let something live at some more quarters of steps."""
    at = [*spans.get(held, ()), *at]
    spans[held] = min(at), max(at)


def named(
    spans: Mapping[Held, Span], candidates: Callable[[Held], Iterable[str]]
) -> dict[Held, str]:
    """One name for what lives one after the other, more where lives overlap; what is owned first.

    A name is the first candidate that nothing else has at the same time.
    """
    taken, names = dict[str, list[Span]](), dict[Held, str]()
    for held in sorted(spans, key=lambda x: (OWN not in x, spans[x])):
        first, last = spans[held]
        for name in candidates(held):
            others = taken.setdefault(name, [])
            if all(last <= a or b <= first for a, b in others):
                names[held] = name
                others.append((first, last))
                break
    return names
