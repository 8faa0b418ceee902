"""The variables of a pass: what a device has of queries, keys, values, and sums of results.

Inputs are what statements name: "own", what an exchange brought, what travels. Sums are apart by
where they go next: those that ranks own, those for what an exchange brought, and those that a
message takes along in the next step. Variables of one side share a name where one follows the
other.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

from codegen.lowered.variables import input_spans, named, sum_spans
from codegen.lowered.walk import Cell, Walk
from codegen.text import numbered
from planner.errors import PlanError
from planner.ir import TENSORS, Pass
from planner.loops.form import HELD, OWN, Loops, Return, Statement

SPARE = 1  # steps by which a loop may send inputs on that nobody reads any more
Key = tuple[str, str]  # the name of a value, and the side
Source = tuple[Statement, str]  # a statement, and the side of the sums that it adds to
LEAVING = ", leaving"  # behind a value: of two variables of its sums, the one that is sent
BASES: dict[tuple[Pass, str, bool], str] = {  # pass, side, sums
    ("forward", "q", False): "q",
    ("forward", "kv", False): "kv",
    ("forward", "q", True): "out, lse",
    ("backward", "q", False): "queries",
    ("backward", "kv", False): "kv",
    ("backward", "q", True): "dq",
    ("backward", "kv", True): "dkv",
}


@dataclass
class Values:
    """Names of variables: of inputs and of sums, by side."""

    pass_: Pass
    inputs: dict[Key, str] = field(default_factory=dict)
    sums: dict[Key, str] = field(default_factory=dict)
    cells: dict[Source, Key] = field(default_factory=dict)  # where an attend or a message adds
    taken: dict[Statement, Key] = field(default_factory=dict)  # the sums that each takes
    sent: set[Key] = field(default_factory=set)  # sums that a send takes
    returned: set[Key] = field(default_factory=set)  # sums that a return takes

    def back(self, names: Collection[str]) -> list[Key]:
        """The sums that go back over exchanges of these names."""
        return [key for s, key in self.taken.items() if isinstance(s, Return) and s.name in names]


def values(loops: Loops, pass_: Pass, walked: Walk, kept: Collection[str] = ()) -> Values:
    """Name everything; `kept`: values of exchanges that are needed at the end, and their sums.

    Raises PlanError for what needs more than a variable per value.
    """
    made, variable = Values(pass_), _variables(loops, walked)
    _cells(made, loops, walked, variable)
    inputs = {(name, side): span for (side, name), span in input_spans(loops, SPARE).items()}
    lives, end = sum_spans(walked, variable), 4 * loops.steps
    early = not any(s.again for s in loops.exchanges.values())  # else all begin before a loop
    if pass_ == "forward" and (OWN, "q") in inputs:
        inputs[OWN, "q"] = inputs[OWN, "q"][0], end
    for spans, last in ((inputs, {*kept}), (lives, {OWN, *dict(made.back(kept))})):
        spans |= {key: (first * early, end) for key, (first, _) in spans.items() if key[0] in last}
    made.inputs = named(inputs, partial(_candidates, made, loops, False))
    made.sums = named(lives, partial(_candidates, made, loops, True))
    return made


def _mark(key: Key, sums: bool, made: Values, loops: Loops) -> str:
    """Returns the mark that tells a value from another of its side."""
    if key[0] == HELD and not sums:
        return "held_{}"
    brought = loops.exchanges.items()
    marks = {name: "all_{}" if s.gathers else "{}_by_heads" for name, s in brought}
    returned = {made.taken[s]: s.name for s in loops.statements if isinstance(s, Return)}
    return marks.get(returned.get(key, "") if sums else key[0], "remote_{}")


def _candidates(made: Values, loops: Loops, sums: bool, key: Key) -> Iterator[str]:
    """Names for a variable, one or two words each."""
    base, mark = BASES[made.pass_, key[1], sums], _mark(key, sums, made, loops)
    marked = ", ".join(map(mark.format, base.split(", ")))
    return numbered(*[base] * (mark not in ("held_{}", "all_{}")), marked)


def _variables(loops: Loops, walked: Walk) -> Callable[[Cell, int], Key]:
    """Where sums are that are added to a cell in a step: own ones apart if they leave at once."""
    back = {walked.source[s] for s in loops.statements if isinstance(s, Return)}
    times = {cell: sorted(steps) for cell, steps in walked.taken.items()}
    sends = ((s, cell) for s, cell in walked.source.items() if not isinstance(s, Return))
    sent = {(cell, t) for s, cell in sends for t in s.when.steps}

    def variable(cell: Cell, t: int) -> Key:
        steps = times.get(cell, [])
        number = bisect_right(steps, t)
        later = steps[number] if number < len(steps) else t
        leaves = (cell, later) in sent
        if leaves and later > t + 1:
            raise PlanError("sums that wait for several steps before they go on")
        apart = leaves and (cell[1] == OWN or cell in back)
        return (f"{cell[1]}{LEAVING}" if apart else cell[1], TENSORS[cell[0]].side)

    return variable


def _cells(made: Values, loops: Loops, walked: Walk, variable: Callable[[Cell, int], Key]) -> None:
    """Where attends and messages add, and what they take."""
    for s, t, cell in walked.additions():
        key = variable(cell, t)
        if made.cells.setdefault((s, key[1]), key) != key:
            raise PlanError("sums that are added to one value first and then to another")
    for s, cell in walked.source.items():
        made.taken[s] = variable(cell, s.when.first - 1)
        (made.returned if isinstance(s, Return) else made.sent).add(made.taken[s])
    if made.sent & made.returned:
        raise PlanError("sums of which some are sent where others go back")
