"""Steps in runs, and runs as lines: one step, or a loop over steps that are alike."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from codegen.jax.hops import is_stepwise, sends_inputs
from codegen.jax.values import SPARE
from codegen.lowered.shares import apart
from codegen.text import Flags, Names
from planner.errors import PlanError
from planner.loops.form import Attend, Exchange, Expr, Loops, Send, Start, Statement

WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Run:
    """Steps with the same statements: one step, a loop of JAX, or one that Python unrolls."""

    steps: tuple[int, ...]
    kind: Literal["straight", "rolled", "unrolled"]
    statements: tuple[Statement, ...] = ()  # some that run in them


@dataclass(frozen=True)
class Op:
    """Lines, not indented, that assign to `targets`; `text` has every name that they read.

    `condition`: on the step of a loop that Python unrolls, which holds in some `steps`.
    """

    lines: tuple[str, ...]
    targets: tuple[str, ...]
    text: str
    condition: str = ""
    steps: tuple[int, ...] = ()

    @property
    def only(self) -> int | None:
        """The step, where it is one, and not read."""
        return self.steps[0] if len(self.steps) == 1 and "step" not in self.reads else None

    @property
    def reads(self) -> frozenset[str]:
        """The words in what it reads."""
        return frozenset(WORD.findall(self.text))


@dataclass(frozen=True)
class Block:
    """A run's lines, and those before and after its loop; no run: lines only."""

    run: Run | None
    ops: tuple[Op, ...]
    before: tuple[Op, ...] = ()
    after: tuple[Op, ...] = ()


def runs(loops: Loops) -> list[Run]:
    """The steps in runs of the same statements."""
    activity = _Activity(loops)
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

    def __init__(self, loops: Loops) -> None:
        self.statements, every = loops.statements, range(loops.steps)
        read = (
            s.parts if isinstance(s, Send) else (s.part,)
            for s in loops.statements
            if isinstance(s, Start | Send) and not s.sums
        )
        self.kept = {p.value for parts in read for p in parts if p.lag != Expr()}
        self.on = np.array([[s.when.on(t) for t in every] for s in loops.statements])
        self.pauses = np.stack([_pauses(row) for row in self.on])
        self.exchanging = np.zeros(loops.steps, np.bool_)  # several times, and what reads that
        for section in loops.sections():
            again = any(isinstance(s, Exchange) and s.again for s in section.statements)
            self.exchanging[section.first : section.last + 1] = again

    def during(self, steps: range) -> Iterator[tuple[Statement, Flags]]:
        """Each statement that runs in these steps, and in which of them."""
        for s, on in zip(self.statements, self.on[:, steps.start : steps.stop], strict=True):
            if on.any():
                yield s, on

    def check_names(self, steps: range) -> None:
        """Raise PlanError where two messages bring one value in the same run of steps."""
        apart = self.kind(steps) == "unrolled"
        for part in [range(t, t + 1) for t in steps] if apart else [steps]:
            sends = (s for s, _ in self.during(part) if isinstance(s, Send) and sends_inputs(s))
            names = [(s.name, s.tensors) for s in sends]
            if len(set(names)) < len(names):
                raise PlanError("a value that several messages bring at once")

    def unrolls(self, steps: range) -> bool:
        """True if a message's way changes with the step, statements pause, or exchanges go on."""
        special = np.vstack([self.pauses, self.exchanging])[:, steps.start : steps.stop].any()
        return bool(special) or any(is_stepwise(s) for s, _ in self.during(steps))

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
        """True if a loop over these steps may go on to step t."""
        return not any(
            sends_inputs(s) and (~on).sum() > self.spare(s)
            for s, on in self.during(range(steps.start, t + 1))
        )

    def spare(self, s: Statement) -> int:
        """Counts the steps in which a loop may send inputs on that nobody reads any more."""
        assert isinstance(s, Send)
        return 0 if is_stepwise(s) or s.name in self.kept else SPARE

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


def lines(blocks: Sequence[Block], results: Sequence[str], names: Names) -> list[str]:
    """The body of a pass; `results` are read after it."""
    check_defined(blocks, results, names)
    needed, parts = set(results), list[list[str]]()
    for block in reversed(blocks):
        parts.append(indented(block.after))
        _read(needed, block.after)
        if block.run is None or block.run.kind == "straight":
            parts.append(indented(block.ops))
            _read(needed, block.ops)
        else:
            parts.append(_loop(block, needed, names))
        _read(needed, block.before)
    return [line for part in reversed(parts) for line in part]


def check_defined(blocks: Sequence[Block], results: Sequence[str], names: Names) -> None:
    """Raise PlanError if a variable is read, or carried around a loop, before it is assigned."""
    ops = [op for block in blocks for op in (*block.before, *block.ops, *block.after)]
    variables = {name for op in ops for name in op.targets} - {"q", "out", "lse"}
    assigned = set[str]()

    def run(ops: Sequence[Op], step: int = 0) -> None:
        for op in ops:
            if eval(op.condition or "True", {names.step: step, **names.values}):
                _check_reads(op.reads & variables, assigned)
                assigned.update(op.targets)

    for block in blocks:
        kind = block.run.kind if block.run else "straight"
        run(block.before)
        if kind == "rolled":
            carried = {t for op in block.ops for t in op.targets if not is_arriving(t)}
            _check_reads(carried & variables, assigned)
        for t in block.run.steps if block.run else (0,):
            run(block.ops, t - names.first)
        run(block.after)
    _check_reads({*results} & variables, assigned)


def _check_reads(names: Set[str], assigned: set[str]) -> None:
    if lost := sorted(names - assigned):
        raise PlanError(f"values that are read before they are there: {', '.join(lost)}")


def _read(needed: set[str], ops: Sequence[Op]) -> None:
    """Turn what is needed after some lines into what is needed before them."""
    for op in reversed(ops):
        needed -= set() if op.condition else set(op.targets)
        needed |= op.reads


def _loop(block: Block, needed: set[str], names: Names) -> list[str]:
    assert block.run
    steps, inside = block.run.steps, set[str]()
    _read(inside, block.ops)
    first, end = steps[0] - names.first, names.count(steps[-1] + 1 - names.first)
    before = indented(block.before)
    written = dict.fromkeys(t for op in block.ops for t in op.targets)
    kept = {t for op in block.ops if op.condition for t in op.targets if not is_arriving(t)}
    state = [name for name in written if name in inside | needed | kept and not is_arriving(name)]
    out = [name if name in needed else "_" for name in state]
    needed |= inside - {"step"} | set(state)
    if block.run.kind == "unrolled":
        head = f"    for step in range({f'{first}, ' if first else ''}{end}):"
        return [*before, head, *conditional(block.ops)]
    step, one = "step" if "step" in inside else "_", len(state) == 1
    head = f"    def one_step({step}, {state[0] if one else 'state'}):"
    unpacked = [] if one else [f"        {', '.join(state)} = state"]
    start = state[0] if one else f"({', '.join(state)})"
    loop = f"    {', '.join(out)} = lax.fori_loop({first}, {end}, one_step, {start})"
    body = [head, *unpacked, *conditional(block.ops), f"        return {', '.join(state)}"]
    return [*before, "", *body, "", loop]


def is_arriving(name: str) -> bool:
    """True for what is read in the step in which it is assigned, and not later."""
    return name.startswith("arriving_")


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
