"""Steps in runs, and runs as lines: one step, or a loop over steps that are alike."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from codegen.jax.hops import sends_inputs
from codegen.jax.values import SPARE
from codegen.lowered.shares import apart
from codegen.lowered.variables import inputs_read
from codegen.text import Flags, Names
from planner.errors import PlanError
from planner.loops.form import Attend, Exchange, Loops, Statement

WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Run:
    """Steps with the same statements: one step, a loop of JAX, or one that Python unrolls."""

    steps: tuple[int, ...]
    kind: Literal["straight", "rolled", "unrolled"]
    statements: tuple[Statement, ...] = ()  # some that run in them


@dataclass(frozen=True, eq=False)
class Op:
    """Assignments, not indented, of which the last one counts.

    `condition`: on the step of a loop that Python unrolls, which holds in some `steps`.
    """

    lines: tuple[str, ...]
    condition: str = ""
    steps: tuple[int, ...] = ()

    @property
    def only(self) -> int | None:
        """The step, where it is one, and not read."""
        return self.steps[0] if len(self.steps) == 1 and "step" not in self.reads else None

    @cached_property
    def targets(self) -> list[str]:
        """The names that are assigned to."""
        return self.lines[-1].partition(" = ")[0].split(", ")

    @cached_property
    def reads(self) -> frozenset[str]:
        """The words in what is assigned."""
        values = (line.partition(" = ")[2] for line in self.lines)
        return frozenset(WORD.findall(" ".join(values)))


@dataclass(frozen=True, eq=False)
class Block:
    """A run's lines, and those before and after its loop; no run: lines only."""

    run: Run | None
    ops: tuple[Op, ...]
    before: tuple[Op, ...] = ()
    after: tuple[Op, ...] = ()

    @property
    def parts(self) -> tuple[tuple[Op, ...], ...]:
        """Its lines: before the loop, in it, and after it."""
        return self.before, self.ops, self.after

    @property
    def every(self) -> tuple[Op, ...]:
        """All lines."""
        return (*self.before, *self.ops, *self.after)


def runs(loops: Loops, stepwise: Set[Statement]) -> list[Run]:
    """The steps in runs of the same statements; `stepwise`: messages that change with the step."""
    activity = _Activity(loops, stepwise)
    signs = [activity.sign(t) for t in range(loops.steps)]
    spans = list[range]()
    for t, sign in enumerate(signs):
        if spans and (
            (signs[spans[-1][0]] == sign and activity.joins(spans[-1], t))
            or (activity.unrolls(range(spans[-1][0], t + 1)) and activity.shares(t))
        ):
            spans[-1] = range(spans[-1][0], t + 1)
        else:
            spans.append(range(t, t + 1))
    made = list[Run]()
    for steps in spans:
        activity.check_names(steps)
        made += [Run(tuple(t), activity.kind(t), running) for t, running in apart(loops, steps)]
    return made


class _Activity:
    """Which statements run in which steps: `on` [statements, steps]."""

    def __init__(self, loops: Loops, stepwise: Set[Statement]) -> None:
        self.stepwise = stepwise
        self.statements, every = loops.statements, range(loops.steps)
        reading = (part for s in loops.statements for _, part in inputs_read(s))
        self.kept = {part.value for part in reading if part.lag}
        self.on = np.array([[s.when.on(t) for t in every] for s in loops.statements])
        self.exchanging = np.zeros(loops.steps, np.bool_)  # several times, and what reads that
        for section in loops.sections():
            again = any(isinstance(s, Exchange) and s.again for s in section.statements)
            self.exchanging[section.first : section.last + 1] = again
        self.special = np.any([self.exchanging, *map(_pauses, self.on)], axis=0)

    def during(self, steps: range) -> Iterator[tuple[Statement, Flags]]:
        """Each statement that runs in these steps, and in which of them."""
        for s, on in zip(self.statements, self.on[:, steps.start : steps.stop], strict=True):
            if on.any():
                yield s, on

    def check_names(self, steps: range) -> None:
        """Raise PlanError where two messages bring one value in the same run of steps."""
        apart = self.kind(steps) == "unrolled"
        for part in [range(t, t + 1) for t in steps] if apart else [steps]:
            names = [(s.name, s.tensors) for s, _ in self.during(part) if sends_inputs(s)]
            if len(set(names)) < len(names):
                raise PlanError("in a step, several messages bring a rank keys, or queries")

    def unrolls(self, steps: range) -> bool:
        """True if a message's way changes with the step, statements pause, or exchanges go on."""
        special = self.special[steps.start : steps.stop].any()
        return bool(special) or any(s in self.stepwise for s, _ in self.during(steps))

    def shares(self, t: int) -> bool:
        """True if some attend runs in step t and in the one before, or exchanges go on."""
        both = range(t - 1, t + 1)
        attends = any(isinstance(s, Attend) and on.all() for s, on in self.during(both))
        return attends or bool(self.exchanging[t - 1 : t + 1].all())

    def sign(self, t: int) -> frozenset[int]:
        """The statements of a step without sends of inputs, which may go on for nothing."""
        return frozenset(
            n for n, s in enumerate(self.statements) if self.on[n, t] and not sends_inputs(s)
        )

    def joins(self, steps: range, t: int) -> bool:
        """True if a loop over these steps may go on to step t, and send what nobody reads there.

        What is sent before its time would take the place of what is there.
        """
        during = self.during(range(steps.start, t + 1))
        sends = [(s, on) for s, on in during if sends_inputs(s)]
        steady = [s for s, _ in sends if s not in self.stepwise and s.name not in self.kept]
        return all(on[0] and (~on).sum() <= SPARE * (s in steady) for s, on in sends)

    def kind(self, steps: range) -> Literal["straight", "rolled", "unrolled"]:
        """Says if steps are written one by one, as a loop of JAX, or as one that Python unrolls."""
        if len(steps) == 1:
            return "straight"
        return "unrolled" if self.unrolls(steps) else "rolled"


def _pauses(on: Flags) -> Flags:
    """The steps from the first to the last of a statement that pauses in between; else none."""
    steps = np.flatnonzero(on)
    between = np.zeros_like(on)
    if (np.diff(steps) > 1).any():
        between[steps[0] : steps[-1] + 1] = True
    return between


# ---- lines

GIVEN = {"q", "out", "lse"}  # variables that arguments of a pass have the names of


@dataclass
class Reads:
    """The lines whose values are read, as one goes back over them.

    `wanted`: variables that lines from here on read. `carried`: those that a loop of JAX has from
    step to step; of these, `leaving` are read after it.
    """

    wanted: set[str]
    read: set[Op] = field(default_factory=set)
    carried: dict[Block, list[str]] = field(default_factory=dict)
    leaving: dict[Block, set[str]] = field(default_factory=dict)

    def back(self, ops: Sequence[Op], t: int = 0) -> None:
        """Go back over lines, in a step."""
        for op in reversed(ops):
            if (not op.condition or t in op.steps) and not self.wanted.isdisjoint(op.targets):
                self.read.add(op)
                self.wanted = self.wanted.difference(op.targets) | op.reads

    def before(self, block: Block) -> None:
        """Go back over a run, from its last step on."""
        self.back(block.after)
        self.leaving[block], between = {*self.wanted}, {*self.wanted}
        for t in reversed(block.run.steps if block.run else (0,)):
            self.back(block.ops, t)
            between |= self.wanted
        written = (name for op in block.ops if op in self.read for name in op.targets)
        if block.run and block.run.kind == "rolled":
            self.carried[block] = [name for name in dict.fromkeys(written) if name in between]
            self.wanted |= {*self.carried[block]}
        self.back(block.before)


def lines(blocks: Sequence[Block], results: Sequence[str], names: Names) -> list[str]:
    """The body of a pass, without needless lines; `results` are read after it.

    Raises PlanError if a variable is read, or carried around a loop, before it is assigned.
    """
    reads = Reads({*results})
    for block in reversed(blocks):
        reads.before(block)
    assigned = {name for block in blocks for op in block.every for name in op.targets}
    if reads.wanted & assigned - GIVEN:
        raise PlanError("a rank would compute with blocks before they have come")
    kept, made = worth_printing(blocks, reads.read), list[str]()
    for block in blocks:
        before, ops, after = ([op for op in part if op in kept] for part in block.parts)
        made += indented(before)
        if block.run is None or block.run.kind == "straight":
            made += indented(ops)
        elif ops:
            made += _loop(block, ops, reads, names)
        made += indented(after)
    return made


def worth_printing(blocks: Sequence[Block], read: Set[Op]) -> set[Op]:
    """Lines that are read, and first values of what a loop names above the line that assigns it."""
    kept, named = {*read}, {*GIVEN}
    for block in blocks:
        first = {name: op for op in block.before for name in op.targets}
        for op in (op for op in block.every if op in read):
            kept |= {first[name] for name in (op.reads - named) & first.keys()}
            named |= {*op.targets}
    return kept


def _loop(block: Block, ops: Sequence[Op], reads: Reads, names: Names) -> list[str]:
    """A run of steps as a loop."""
    assert block.run
    steps = block.run.steps
    first, end = steps[0] - names.first, names.count(steps[-1] + 1 - names.first)
    if block.run.kind == "unrolled":
        head = f"    for step in range({f'{first}, ' if first else ''}{end}):"
        return [head, *conditional(ops)]
    state, leaving = reads.carried[block], reads.leaving[block]
    out = [name if name in leaving else "_" for name in state]
    step, one = "step" if any("step" in op.reads for op in ops) else "_", len(state) == 1
    head = f"    def one_step({step}, {state[0] if one else 'state'}):"
    unpacked = [] if one else [f"        {', '.join(state)} = state"]
    start = state[0] if one else f"({', '.join(state)})"
    loop = f"    {', '.join(out)} = lax.fori_loop({first}, {end}, one_step, {start})"
    body = [head, *unpacked, *conditional(ops), f"        return {', '.join(state)}"]
    return ["", *body, "", loop]


def indented(ops: Sequence[Op], by: int = 4) -> list[str]:
    """The lines of a function."""
    return [f"{' ' * by}{line}" for op in ops for line in op.lines]


def conditional(ops: Sequence[Op]) -> list[str]:
    """Lines of a loop's body, those of one condition under one head."""
    made, last = list[str](), ""
    for op in ops:
        if op.condition and op.condition != last:
            made.append(f"        if {op.condition}:")
        made += indented([op], 12 if op.condition else 8)
        last = op.condition
    return made
