"""The attends of some steps as cases of which a device has at most one: lax.cond, lax.switch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from codegen.jax.values import Values
from codegen.lowered.conditions import Domain, bounds, needed, on_arrays, times
from codegen.lowered.shares import head_of
from codegen.lowered.walk import Cell, Walk
from codegen.reflow import WIDTH
from codegen.text import Flags
from planner.errors import PlanError
from planner.loops.form import Attend, Expr, Guard, Ints, Loops, Part

Slice = tuple[int, int, int]  # first and last piece, of so many
MOST = 4  # cases of one statement
WHOLE = "whole"  # all pieces of both values, whatever the rectangle is: a kind of masked tile
MASKED = "masked", WHOLE
LEFT_OPEN = ("end", "other", "any")  # kinds that say nothing about all tiles


@dataclass(eq=False)
class Case:
    """A rectangle of pieces: which, of what kind, where it is computed, and how that is said."""

    q: str  # the names of both values
    kv: str
    rows: Slice
    cols: Slice
    kind: str
    active: Flags  # [steps, ranks]
    guard: Guard
    head: Expr | None = None  # the slice of the heads of queries, None for all
    statements: tuple[Attend, ...] = ()

    @property
    def whole(self) -> bool:
        """True if it is all pieces of both values, and nothing else."""
        parts = self.rows, self.cols
        return self.kind != WHOLE and all(last - first + 1 == of for first, last, of in parts)


@dataclass(frozen=True, eq=False)
class Group:
    """Cases that exclude each other and add to the same sums."""

    cells: tuple[Cell, ...]
    cases: tuple[Case, ...]

    @property
    def always(self) -> bool:
        """True if every device has a case in every step."""
        return bool(np.logical_or.reduce([c.active for c in self.cases]).all())

    def alike(self) -> "Group":
        """The same, all under the mask if one is, so that functions take the same arguments."""
        if all(case.kind not in MASKED for case in self.cases):
            return self
        statements = tuple(s for case in self.cases for s in case.statements)
        masked = (replace(c, kind="masked", statements=statements) for c in self.cases)
        cases = zip(self.cases, masked, strict=True)
        return replace(self, cases=tuple(as_ if case.whole else case for case, as_ in cases))


def groups(
    loops: Loops,
    walked: Walk,
    made: Values,
    steps: Sequence[int],
    tensors: Sequence[str],
    padded: bool = False,
) -> list[Group]:
    """The attends that run in these steps; `padded`: pieces are, so that all take a mask."""
    open_groups: list[tuple[tuple[Cell, ...], list[Case]]] = []
    again = any(s.again for s in loops.exchanges.values())
    for s in loops.statements:
        on = [t for t in steps if s.when.on(t)]
        if not isinstance(s, Attend) or not on:
            continue
        cells = tuple(made.cells[s, tensor] for tensor in tensors)
        for case in _cases(s, loops, walked, steps, padded):
            for other, cases in open_groups:
                apart = not any((case.active & c.active).any() for c in cases)
                now = on if again else steps
                if other == cells and apart and any(map(cases[0].statements[0].when.on, now)):
                    cases.append(case)
                    break
            else:
                open_groups.append((cells, [case]))
    return [Group(cells, tuple(_joined(cases))) for cells, cases in open_groups]


def _joined(cases: list[Case]) -> list[Case]:
    """One case of whole values for all devices, if one of them takes a mask in every step.

    The others wait for that one.
    """
    masked = [case for case in cases if case.kind in MASKED]
    everywhere, waiting = (
        np.logical_or.reduce([case.active for case in chosen] or [cases[0].active & False])
        for chosen in (cases, masked)
    )
    alike = len({(case.q, case.kv, case.head) for case in cases}) == 1
    if len(cases) == 1 or not alike or not everywhere.all() or not waiting.all(axis=0).any():
        return cases
    statements = tuple(s for case in cases for s in case.statements)
    rows, cols = ((0, width - 1, width) for width in (cases[0].rows[2], cases[0].cols[2]))
    whole = replace(masked[0], rows=rows, cols=cols, kind=WHOLE, guard=Guard())
    return [replace(whole, active=everywhere, statements=statements)]


def _cases(s: Attend, loops: Loops, walked: Walk, steps: Sequence[int], padded: bool) -> list[Case]:
    """A statement as cases of fixed pieces, or of whole values if these take a mask."""
    at = loops.coordinates()
    q, kv = s.q[0].value, s.kv[0].value
    widths = walked.width("q", q), walked.width("kv", kv)
    shape = widths[0], widths[0], widths[1], widths[1]
    codes = np.full((len(steps), len(at)), -1)
    for i, t in enumerate(steps):
        if r := walked.attended[s].get(t):
            parts = zip((s.q[0], s.kv[0]), widths, strict=True)
            pieces = [x for p, width in parts for x in _pieces(p, width, t, at[r.rank])]
            codes[i, r.rank] = np.ravel_multi_index(tuple(pieces), shape)
    active = codes >= 0
    different = np.unique(codes[active])
    several = len(s.q) + len(s.kv) > 2 or len(different) > MOST
    if several or padded or s.kind in LEFT_OPEN:
        everything = np.ravel_multi_index((0, widths[0] - 1, 0, widths[1] - 1), shape)
        kind = WHOLE if several or (different != everything).any() else "masked"
        rows, cols = ((0, width - 1, width) for width in widths)
        whole = Case(q, kv, rows, cols, kind, active, s.when.guard, statements=(s,))
        return [replace(whole, head=head_of([s]))]
    made = []
    for code in different:
        on, ends = codes == code, np.unravel_index(code, shape)
        guard = s.when.guard
        if len(different) > 1:
            guard = replace(guard, bounds=(*guard.bounds, _choice(on, active, at)))
        rows, cols = (
            (int(a), int(b), width)
            for a, b, width in ((*ends[:2], widths[0]), (*ends[2:], widths[1]))
        )
        made.append(Case(q, kv, rows, cols, s.kind, on, guard, head_of([s]), (s,)))
    return made


def _pieces(p: Part, width: int, t: int, at: Ints) -> list[Ints]:
    """The first and the last piece of a part, on ranks at these coordinates: [n] each."""
    ends = p.pieces or (Expr(0), Expr(width - 1))
    return [e.at(t, at).clip(0, width - 1) for e in ends]


def _choice(on: Flags, active: Flags, at: Ints) -> tuple[int, Expr, Expr]:
    """The coordinate, with its values, that tells a case from the others of its statement."""
    for axis in range(at.shape[1] - 1):
        x = np.broadcast_to(at[:, axis], on.shape)
        low, high = x[on].min(), x[on].max()
        if np.array_equal(active & (x >= low) & (x <= high), on):
            return axis, Expr(int(low)), Expr(int(high))
    raise PlanError("the shape of attention calls follows no axis of the ranks")


def conditions_of(group: Group, on: Domain) -> list[str]:
    """When a device has each case and none before, as text; nothing for a last one of all others.

    Raises PlanError for conditions that are not the plan's.
    """
    made, rest = list[str](), np.ones_like(group.cases[0].active)
    for case in group.cases:
        left = rest & ~case.active
        during = np.asarray(case.active.any(axis=1))
        asked = rest & during[:, None]
        steps = [t for t, runs in zip(on.steps, during, strict=True) if runs]
        made_of = [*times(steps, on), *bounds(case.guard, on, asked)] if left.any() else []
        said = needed(made_of, rest)
        text = on_arrays(said)
        if not np.array_equal(on.evaluate(text) & rest, case.active):
            raise PlanError(f"which ranks compute in a step is not told by {text}")
        made += [text] if left.any() else []
        rest = left
    return made


Call = tuple[str, list[str]]  # a function, arguments


def switched(
    group: Group,
    calls: Sequence[Call],
    bases: Sequence[str],
    targets: str,
    on: Domain,
    closures: bool,
) -> tuple[str, ...]:
    """The lines that assign to `targets` what a device's case gives.

    `bases`: what the cases add to. `closures`: lambdas may stand there, of what a loop assigns.
    """
    conditions = conditions_of(group, on)
    exhaustive = len(conditions) < len(group.cases)
    if len({called(made) for made in calls}) == 1:
        calls = calls[:1]
        if exhaustive:
            conditions = []
        elif len(conditions) > 1:
            conditions = [" | ".join(f"({x})" for x in conditions)]
    if not conditions:
        return (f"{targets} = {called(calls[0])}",)
    if closures:
        same = ", ".join(bases)
        same = same if same.startswith("nothing(") else f"({same})"
        branches = [f"lambda: {called(made)}" for made in calls]
        branches += [f"lambda: {same}"] * (not exhaustive)
        return (chosen(conditions, branches, [], targets),)
    operands = [a for a in calls[0][1] if "=" not in a]
    if any([a for a in arguments if "=" not in a] != operands for _, arguments in calls):
        raise PlanError("in a step, ranks attend to blocks of different messages")
    branches = [function(made) for made in calls] + ["lambda *x: x[:2]"] * (not exhaustive)
    whole = chosen(conditions, branches, operands, targets)
    if len(whole) <= WIDTH - 12:  # in a condition of a loop
        return (whole,)
    line = chosen(conditions, branches, ["*operands"], targets)
    return f"operands = {', '.join(operands)}", line


def chosen(
    conditions: Sequence[str], branches: Sequence[str], operands: Sequence[str], targets: str
) -> str:
    """The call of the first function whose condition holds, of the last one if none does."""
    if len(conditions) == 1:
        return f"{targets} = lax.cond({', '.join([conditions[0], *branches, *operands])})"
    index = str(len(conditions))
    for number, text in reversed([*enumerate(conditions)]):
        index = f"jnp.where({text}, {number}, {index})"
    arguments = ", ".join([index, f"[{', '.join(branches)}]", *operands])
    return f"{targets} = lax.switch({arguments})"


def called(made: Call) -> str:
    """A call as text."""
    return f"{made[0]}({', '.join(made[1])})"


def function(made: Call) -> str:
    """Returns the function of a call, with its keyword arguments."""
    words = [made[0], *(a for a in made[1] if "=" in a)]
    return words[0] if len(words) == 1 else f"partial({', '.join(words)})"
