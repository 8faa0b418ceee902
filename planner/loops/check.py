"""check(loops, plan)   a loop form expands to exactly the rows of its plan, or PlanError."""

import numpy as np

from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.expand import Expanded, expand
from planner.loops.form import Ints, Loops
from planner.loops.kinds import ANY, END, KINDS, OTHER, Codes, Kinds
from planner.loops.values import Bools, Rectangles, Rows, codes, rows_of, widened


def check(loops: Loops, plan: Plan) -> None:
    """Raise PlanError unless the loops expand to the plan's rows, and kinds are the mask's.

    Rows are compared step by step, whatever their order; messages of the same tensors between
    the same ranks in a step count as one. The mask is asked again what each rectangle is.
    """
    if loops.steps != len(plan.steps):
        raise PlanError(f"the loops have {loops.steps} steps, the plan has {len(plan.steps)}")
    kinds, blocks = Kinds(plan), max(len(plan.partition.q), len(plan.partition.kv))
    for t, (made, step) in enumerate(zip(expand(loops, plan), plan.steps, strict=True)):
        real = rows_of(step)
        _check_messages(t, made, real, plan.ranks, blocks)
        if not _alike(made.attends, real.attends):
            raise PlanError(f"step {t}: rectangles are not the plan's")
        _check_kinds(t, made, kinds)


def claimed(said: Ints, true: Codes) -> Bools:
    """True where a claim holds of a rectangle of that kind: `other` and `any` leave more open."""
    return np.asarray((said == true) | (said == ANY) | ((said == OTHER) & (true == END)))


def _check_kinds(t: int, made: Expanded, kinds: Kinds) -> None:
    rank, q, kv = made.attends
    true = kinds.of(q, kv)
    wrong = np.flatnonzero(~claimed(made.kinds, true))
    if len(wrong):
        i = wrong[0]
        said, is_ = KINDS[made.kinds[i]], KINDS[true[i]]
        raise PlanError(f"step {t}, rank {rank[i]}: a rectangle is {is_}, not {said}")


def _check_messages(t: int, made: Rows, real: Rows, ranks: int, blocks: int) -> None:
    moves = {k: v for k, v in made.moves.items() if len(v[0])}
    if moves.keys() != real.moves.keys():
        raise PlanError(f"step {t}: the loops move {sorted(moves)}, the plan {sorted(real.moves)}")
    for tensors in moves:
        made_codes, real_codes = (codes(x[tensors], ranks, blocks) for x in (moves, real.moves))
        if not np.array_equal(made_codes, real_codes):
            raise PlanError(f"step {t}: messages of {' '.join(tensors)} are not the plan's")


def _alike(made: Rectangles, real: Rectangles) -> bool:
    """True for the same rectangles, in whatever order they and their blocks stand."""
    widths = [max(x.shape[1], y.shape[1]) for x, y in zip(made[1:], real[1:], strict=True)]
    left, right = (_lines(x, widths) for x in (made, real))
    return np.array_equal(left, right)


def _lines(rows: Rectangles, widths: list[int]) -> Ints:
    """Rectangles as lines of numbers, each side ascending, and then the lines."""
    rank, *sides = rows
    sides = [np.sort(widened(x, w), axis=1) for x, w in zip(sides, widths, strict=True)]
    lines = np.hstack([rank[:, None], *sides])
    return lines[np.lexsort(lines.T[::-1])]
