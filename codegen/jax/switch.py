"""Cases of which a device has at most one, as lax.cond or lax.switch."""

from collections.abc import Sequence

import numpy as np

from codegen.jax.cases import Group, condition
from codegen.jax.words import WIDTH, Domain, Flags, Names, call
from planner.errors import PlanError
from planner.loops.form import Loops

Call = tuple[str, list[str]]  # up to the bracket, arguments


def switched(
    group: Group,
    calls: Sequence[Call],
    nothing: str,
    targets: str,
    names: Names,
    loops: Loops,
    on: Domain,
    indent: int,
) -> tuple[list[str], str]:
    """The lines that assign to `targets` what a device's case gives; and all text, for reads."""
    texts, rest = list[str](), np.ones_like(group.cases[0].active)
    for case in group.cases:
        texts.append(condition(case, names, loops, on.but(rest)))
        rest = rest & ~case.active
    exhaustive = not rest.any()
    if exhaustive:
        texts[-1] = ""
    check(group, texts, names, on)
    branches: list[Call | str] = [*calls] if exhaustive else [*calls, nothing]
    reads = " ".join([*texts, nothing * (not exhaustive), *(f"{h} {a}" for h, a in calls)])
    if len(branches) == 1:
        head, arguments = calls[0]
        return call(indent, f"{targets} = {head}", arguments), reads
    conditions = texts[: len(branches) - 1]
    if len(branches) == 2:
        first, head = [conditions[0]], "lax.cond("
        inner = [*first, *(branch(b, indent + 4) for b in branches)]
        return call(indent, f"{targets} = {head}", inner), reads
    index = str(len(branches) - 1)
    for number, text in reversed([*enumerate(conditions)]):
        index = f"jnp.where({text}, {number}, {index})"
    listed = call(indent + 4, "[", [branch(b, indent + 8) for b in branches], "]")
    inside = "\n".join(line[indent + 4 :] for line in listed)
    return call(indent, f"{targets} = lax.switch(", [index, inside]), reads


def branch(made: Call | str, indent: int) -> str:
    """A function without arguments."""
    if isinstance(made, str):
        return f"lambda: {made}"
    lines = call(indent, f"lambda: {made[0]}", made[1], width=WIDTH - 1)
    return "\n".join(line[indent:] for line in lines)


def check(group: Group, texts: Sequence[str], names: Names, on: Domain) -> None:
    """Raise PlanError unless the conditions, as they are read one by one, give the cases."""
    rest = np.ones_like(group.cases[0].active)
    for case, text in zip(group.cases, texts, strict=True):
        said = np.stack([_holds(text, names, t, on) for t in on.steps]) & rest
        if not np.array_equal(said, case.active):
            raise PlanError(f"a condition that is not the plan's: {text}")
        rest = rest & ~case.active


def _holds(text: str, names: Names, t: int, on: Domain) -> Flags:
    ranks = len(on.coordinates)
    known: dict[str, object] = {name: on.coordinates[:, a] for a, name in enumerate(names.axes)}
    known |= {"rank": on.coordinates[:, -1], "step": t - names.first, "RANKS": ranks}
    holds = eval(text, {"__builtins__": {}}, known) if text else True
    return np.broadcast_to(np.asarray(holds, np.bool_), (ranks,))
