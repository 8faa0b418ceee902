"""The variables of a pass: what a device has of queries, keys, values, and sums of results.

Inputs are what statements name: "own", what an exchange brought, what travels. Sums are apart by
where they go next: those that are at home, those for what an exchange brought, and those that a
message takes along in the next step. Variables of one side share a name where one follows the
other, as the copies around a ring do.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from codegen.lowered.sums import Cell, Walk
from codegen.lowered.walk import walk
from codegen.programs import Program
from planner.errors import PlanError
from planner.ir import TENSORS, Pass
from planner.loops.form import (
    HELD,
    OWN,
    AllToAll,
    Attend,
    Gather,
    Loops,
    Part,
    Return,
    Scatter,
    Send,
    Start,
    Statement,
)
from planner.loops.values import held

SPARE = 1  # steps by which a loop may send inputs on that nobody reads any more
Key = tuple[str, str]  # the name of a value, and the side
Source = tuple[int, str]  # a statement, and the side of the sums that it adds to
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
Exchange = Gather | AllToAll
MARKS = {AllToAll: "{}_by_heads", Gather: "all_{}"}  # of what an exchange brings


@dataclass
class Values:
    """Names of variables: of inputs and of sums, by side."""

    pass_: Pass
    inputs: dict[Key, str] = field(default_factory=dict)
    sums: dict[Key, str] = field(default_factory=dict)
    cells: dict[Source, Key] = field(default_factory=dict)  # where an attend or a message adds
    taken: dict[int, Key] = field(default_factory=dict)  # the sums that a send or return takes
    sent: set[Key] = field(default_factory=set)  # sums that a send takes
    returned: set[Key] = field(default_factory=set)  # sums that a return takes


def values(loops: Loops, pass_: Pass, walked: Walk, kept: Collection[str] = ()) -> Values:
    """Name everything; `kept`: values of exchanges that are needed at the end, and their sums.

    Raises PlanError for what needs more than a variable per value.
    """
    made = Values(pass_)
    _cells(made, loops, walked)
    spans = dict[tuple[Key, bool], list[int]]()
    for t in range(loops.steps):
        for number, s in enumerate(loops.statements):
            if s.when.on(t):
                for key, sums, at in _uses(made, number, s, t, loops):
                    spans.setdefault((key, sums), []).append(at)
    for sums in (False, True):
        for side in ("q", "kv"):
            keys = [key for key, is_sums in spans if is_sums == sums and key[1] == side]
            lives = {key: (min(spans[key, sums]), max(spans[key, sums])) for key in keys}
            ends = {OWN, *_returned(made, loops, kept)} if sums else set(kept)
            for key in lives:
                if key[0] in ends or (pass_, key) == ("forward", (OWN, "q")):
                    lives[key] = lives[key][0], 2 * loops.steps
            marks = {key: _mark(key, sums, made, loops) for key in lives}
            names = made.sums if sums else made.inputs
            if keys:
                names |= _named(lives, BASES[pass_, side, sums], marks)
    return made


def _returned(made: Values, loops: Loops, kept: Collection[str]) -> Iterator[str]:
    """The sums that go back over exchanges whose values are kept."""
    for n, s in enumerate(loops.statements):
        if isinstance(s, Return) and s.exchange in kept:
            yield made.taken[n][0]


def _mark(key: Key, sums: bool, made: Values, loops: Loops) -> str:
    """Returns the mark that tells a value from another of its side."""
    if key[0] == HELD and not sums:
        return "held_{}"
    marks = {s.name: MARKS[type(s)] for s in loops.statements if isinstance(s, Exchange)}
    returned = {
        made.taken[n]: s.exchange for n, s in enumerate(loops.statements) if isinstance(s, Return)
    }
    return marks.get(returned.get(key, "") if sums else key[0], "remote_{}")


def _named(lives: dict[Key, tuple[int, int]], base: str, marks: dict[Key, str]) -> dict[Key, str]:
    """One name for variables that follow each other, more where they are needed together."""
    taken, names = dict[str, list[tuple[int, int]]](), dict[Key, str]()
    for key in sorted(lives, key=lambda key: (key[0] != OWN, lives[key])):
        first, last = lives[key]
        for name in _candidates(base, marks[key]):
            spans = taken.setdefault(name, [])
            if all(last <= a or b <= first for a, b in spans):
                names[key] = name
                spans.append((first, last))
                break
    return names


def _candidates(base: str, mark: str) -> Iterator[str]:
    words = base.split(", ")
    if mark != "held_{}":
        yield base
    yield ", ".join(map(mark.format, words))
    for number in range(2, 100):
        yield ", ".join(f"{mark.format(word)}_{number}" for word in words)


def _cells(made: Values, loops: Loops, walked: Walk) -> None:
    """Where attends and messages add, and what they take; own sums apart if they leave at once."""

    back = {walked.source[n] for n, s in enumerate(loops.statements) if _goes_back(s)}

    def key(cell: Cell, t: int) -> Key:
        later = min((u for u in walked.taken.get(cell, ()) if u > t), default=t)
        leaves = later in walked.sent.get(cell, ())
        if leaves and later > t + 1:
            raise PlanError("sums that wait for several steps before they go on")
        apart = leaves and (cell[1] == OWN or cell in back)
        return (f"{cell[1]}{LEAVING}" if apart else cell[1], TENSORS[cell[0]].side)

    adds = [*((i, cells) for (i, _), cells in walked.targets.items()), *walked.into.items()]
    for i, cells in adds:
        keys = {key(cell, t) for t, cell in cells.items()}
        if len(keys) > 1:
            raise PlanError("sums that are added to one value first and then to another")
        (only,) = keys
        made.cells[i, only[1]] = only
    for n, cell in walked.source.items():
        made.taken[n] = key(cell, loops.statements[n].when.first - 1)
        (made.returned if _goes_back(loops.statements[n]) else made.sent).add(made.taken[n])


def _goes_back(s: Statement) -> bool:
    """True for exchanges of sums."""
    return isinstance(s, Return | Scatter)


def _uses(
    made: Values, number: int, s: Statement, t: int, loops: Loops
) -> Iterator[tuple[Key, bool, int]]:
    """Which variables a statement reads and writes in a step, and when: 2 t at its start, 2 t + 1
    at its end; inputs arrive at the end, and sums of a step are there at its end."""
    if isinstance(s, Attend):
        yield _input(s.q[0], "q", t, loops), False, 2 * t
        yield _input(s.kv[0], "kv", t, loops), False, 2 * t
        for side in ("q", "kv") if made.pass_ == "backward" else ("q",):
            yield made.cells[number, side], True, 2 * t + 1
        return
    side, sums = TENSORS[s.tensors[0]].side, TENSORS[s.tensors[0]].accumulates
    match s:
        case Start() if not sums:
            yield _input(s.part, side, t, loops), False, 2 * t - 1
            yield (s.name, side), False, 2 * t - 1
        case Send() if not sums:
            yield _input(s.parts[0], side, t, loops), False, 2 * t
            yield (s.name, side), False, 2 * t + 1
            yield (s.name, side), False, 2 * (t + SPARE) + 1
        case Gather() | AllToAll():
            yield _input(s.part, side, t, loops), False, 2 * t
            yield (s.name, side), False, 2 * t + 1
        case Send() | Return() | Scatter():
            yield made.taken[number], True, 2 * t
            yield made.cells[number, side], True, 2 * t + 1


def _input(part: Part, side: str, t: int, loops: Loops) -> Key:
    """The variable of a part that is read in step t: the last that came under its name."""
    age = int(part.lag.at(t, np.zeros((1, len(loops.mesh) + 1), np.intp))[0])
    came = range(t - age, t)  # the steps in which a later one would be sent
    named = (s for s in loops.statements if isinstance(s, Send) and s.name == part.value)
    same = (s for s in named if TENSORS[s.tensors[0]].side == side)
    if age and any(s.when.on(u) for s in same for u in came):
        raise PlanError("values of several steps ago of which others came since")
    return part.value, side


@dataclass(frozen=True)
class Kept:
    """The exchanges of the forward pass whose values are kept, by side; none: nothing is kept."""

    q: Exchange | None = None
    kv: Exchange | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of their values."""
        return frozenset(s.name for s in (self.q, self.kv) if s)

    @property
    def saved(self) -> str:
        """The names of what is saved, as a backward pass takes them."""
        queries = ["held_q", "held_out", "held_lse"] * (self.q is not None)
        return ", ".join([*queries, *["held_kv"] * (self.kv is not None)])


def kept(program: Program) -> Kept:
    """Returns the copies that a backward plan starts with, in the words of the forward loops."""
    backward = program.backward
    if backward is None or not backward.start:
        return Kept()
    assert program.loops
    tensors = {tensor for node in backward.start for tensor in node.tensors}
    if not tensors <= {"Q", "OUT", "KV"} or len(tensors & {"Q", "OUT"}) == 1:
        raise PlanError(f"a backward pass that holds {', '.join(sorted(tensors))}")
    tables = walk(program.forward, program.loops[0])[1].tables
    sides = dict[str, Exchange]()
    for side in ("q", "kv"):
        table = held(backward, side)
        for s in program.loops[0].statements:
            if table is not None and isinstance(s, Exchange):
                brought = tables.get((side, s.name))
                if brought is not None and np.array_equal(brought, table):
                    sides[side] = s
        if table is not None and side not in sides:
            raise PlanError("a backward pass that holds what no exchange brought")
    return Kept(sides.get("q"), sides.get("kv"))
