"""check(loops, plan)   a loop form expands to exactly the rows of the plan, or PlanError."""

import numpy as np

from planner.errors import PlanError
from planner.ir import Plan, Step
from planner.loops import port
from planner.loops.expand import Rectangles, Rows, expand, joined
from planner.loops.form import Ints, Kind, Loops
from planner.loops.values import flat


def check(loops: Loops, plan: Plan) -> None:
    """Raise PlanError unless the loops expand to the plan's rows, and kinds are the mask's."""
    if loops.steps != len(plan.steps):
        raise PlanError(f"the loops have {loops.steps} steps, the plan has {len(plan.steps)}")
    known: dict[object, str] = {}
    for t, (rows, step) in enumerate(zip(expand(loops, plan.partition), plan.steps, strict=True)):
        _check_messages(t, rows, step)
        attends = [(a.rank, a.q, a.kv) for a in step.attends]
        _check_rectangles(t, rows.attends, joined(attends) if attends else None)
        if rows.attends:
            true = port.kinds_of(plan, rows.attends[1], rows.attends[2], known)
            for said, is_ in zip(rows.kinds, true, strict=True):
                if not claims(said, is_):
                    raise PlanError(f"step {t}: a rectangle is {is_}, not {said}")


def claims(said: Kind, true: str) -> bool:
    """Whether a claim holds of a rectangle of that kind; `other` and `any` leave more open."""
    return said in (true, "any") or (said, true) == ("other", "end")


def _check_messages(t: int, rows: Rows, step: Step) -> None:
    made = {k: _columns(*v) for k, v in rows.moves.items() if len(v[0])}
    parts: dict[tuple[str, ...], list[Rectangles]] = {}
    for m in step.moves:
        parts.setdefault(m.tensors, []).append((m.src, m.dst, m.blocks))
    real = {k: _columns(*joined(v)) for k, v in parts.items()}
    if made.keys() != real.keys():
        raise PlanError(f"step {t}: the loops move {sorted(made)}, the plan {sorted(real)}")
    for tensors, columns in real.items():
        if not np.array_equal(made[tensors], columns):
            raise PlanError(f"step {t}: messages of {' '.join(tensors)} are not the plan's")


def _columns(src: Ints, dst: Ints, blocks: Ints) -> Ints:
    """(src, dst, block) of everything that moves, in one order: [3, n]."""
    source, block = flat(src, blocks)
    target, _ = flat(dst, blocks)
    return np.stack([source, target, block])[:, np.lexsort((block, target, source))]


def _check_rectangles(t: int, made: Rectangles | None, real: Rectangles | None) -> None:
    if made is None or real is None or len(made[0]) != len(real[0]):
        if made is None and real is None:
            return
        raise PlanError(f"step {t}: not as many rectangles as in the plan")
    if not np.array_equal(*(_sorted(x, made, real) for x in (made, real))):
        raise PlanError(f"step {t}: rectangles are not the plan's")


def _sorted(rows: Rectangles, *both: Rectangles) -> Ints:
    """Rectangles as lines of numbers in one order; as wide as the wider of both."""
    columns = [rows[0][:, None]]
    for side in (1, 2):
        width = max(b[side].shape[1] for b in both)
        table = np.full((len(rows[0]), width), -1, np.intp)
        table[:, : rows[side].shape[1]] = rows[side]
        columns.append(np.sort(table, axis=1))
    lines = np.hstack(columns)
    return lines[np.lexsort(lines.T[::-1])]
