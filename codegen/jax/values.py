"""The variables of a pass: what a device has of queries, keys, values, and sums of results.

Inputs are what statements name: "own", what an exchange brought, what travels. Sums are apart by
where they go next: those that ranks own, those for what an exchange brought, and those that a
message takes along in the next step. Variables of one side share a name where one follows the
other.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from codegen.lowered.variables import Value, input_spans, named, sum_spans
from codegen.lowered.walk import Cell, Walk
from codegen.text import numbered
from planner.errors import PlanError
from planner.ir import Pass
from planner.loops.form import HELD, OWN, Loops, Return, Send, Statement

SPARE = 1  # steps by which a loop may send inputs on that nobody reads any more
LEAVING = ", leaving"  # behind a value: of two variables of its sums, the one that is sent
SUMS = {"OUT": "out, lse", "DQ": "dq", "DKV": "dkv"}


@dataclass
class Values:
    """Names of variables, of inputs and of sums, and the sums that statements add to and take."""

    inputs: dict[Value, str] = field(default_factory=dict)
    sums: dict[Cell, str] = field(default_factory=dict)
    cells: dict[tuple[Statement, str], Cell] = field(default_factory=dict)  # by tensor
    taken: dict[Statement, Cell] = field(default_factory=dict)

    def back(self, names: Collection[str]) -> list[Cell]:
        """The sums that go back over exchanges of these names."""
        return [cell for s, cell in self.taken.items() if isinstance(s, Return) and s.name in names]


def values(loops: Loops, pass_: Pass, walked: Walk, kept: Collection[str] = ()) -> Values:
    """Name everything; `kept`: values of exchanges that are needed at the end, and their sums.

    Raises PlanError for what needs more than a variable per value.
    """
    made, variable = Values(), _variables(loops, walked)
    _cells(made, loops, walked, variable)
    inputs, lives, end = input_spans(loops, SPARE), sum_spans(walked, variable), 4 * loops.steps
    early = not any(s.again for s in loops.exchanges.values())  # else all begin before a loop
    forward = pass_ == "forward"
    if forward and ("q", OWN) in inputs:
        inputs["q", OWN] = inputs["q", OWN][0], end
    for spans, last in ((inputs, {*kept}), (lives, {OWN, *(n for _, n in made.back(kept))})):
        spans |= {key: (first * early, end) for key, (first, _) in spans.items() if key[1] in last}
    marks = {n: "all_{}" if s.gathers else "{}_by_heads" for n, s in loops.exchanges.items()}
    back = {cell: marks.get(s.name) for s, cell in made.taken.items() if isinstance(s, Return)}
    bases, marks = {"q": "q" if forward else "queries", "kv": "kv"}, marks | {HELD: "held_{}"}
    made.inputs = named(inputs, lambda value: _candidates(bases[value[0]], marks.get(value[1])))
    made.sums = named(lives, lambda cell: _candidates(SUMS[cell[0]], back.get(cell)))
    return made


def _candidates(base: str, mark: str | None) -> Iterator[str]:
    """Names for a variable, one or two words each; `mark` tells it from others of its side."""
    marked = ", ".join(map((mark or "remote_{}").format, base.split(", ")))
    return numbered(*[base] * (mark not in ("held_{}", "all_{}")), marked)


def _variables(loops: Loops, walked: Walk) -> Callable[[Cell, int], Cell]:
    """Where sums are that are added to a cell in a step: own ones apart if they leave at once."""
    back = {walked.source[s] for s in loops.statements if isinstance(s, Return)}
    times = {cell: sorted(steps) for cell, steps in walked.taken.items()}
    sends = ((s, cell) for s, cell in walked.source.items() if not isinstance(s, Return))
    sent = {(cell, t) for s, cell in sends for t in s.when.steps}

    def variable(cell: Cell, t: int) -> Cell:
        steps = times.get(cell, [])
        number = bisect_right(steps, t)
        later = steps[number] if number < len(steps) else -1  # it stays
        leaves = (cell, later) in sent
        if leaves and later > t + 1:
            raise PlanError("partial results wait for several steps before they travel on")
        apart = leaves and (cell[1] == OWN or cell in back)
        return cell[0], f"{cell[1]}{LEAVING}" if apart else cell[1]

    return variable


def _cells(made: Values, loops: Loops, walked: Walk, variable: Callable[[Cell, int], Cell]) -> None:
    """Where attends and messages add, and what they take."""
    for s, t, cell in walked.additions():
        into = variable(cell, t)
        if made.cells.setdefault((s, cell[0]), into) != into:
            raise PlanError("partial results are added up in several places")
    for s, cell in walked.source.items():
        made.taken[s] = variable(cell, s.when.first - 1)
    sent, back = (
        {cell for s, cell in made.taken.items() if isinstance(s, kind)} for kind in (Send, Return)
    )
    if sent & back:
        raise PlanError("some partial results travel on where others go back")
