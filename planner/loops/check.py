"""check(loops, plan)   a loop form expands to exactly the rows of its plan, or PlanError."""

from collections.abc import Sequence

import numpy as np

from planner.columns import widened
from planner.errors import PlanError
from planner.ir import Attend, Plan, Step
from planner.loops.expand import Expansion
from planner.loops.form import Ints, Loops
from planner.loops.kinds import ANY, END, KINDS, OTHER, Codes, Kinds
from planner.loops.values import Bools, codes


def check(loops: Loops, plan: Plan) -> Expansion:
    """The rows that loops expand to; PlanError unless they are the plan's, and kinds the mask's.

    Rows are compared step by step, whatever their order; messages of the same tensors between
    the same ranks in a step count as one. The mask is asked again what each rectangle is.
    """
    if loops.steps != len(plan.steps):
        raise PlanError(f"the loops have {loops.steps} steps, the plan has {len(plan.steps)}")
    kinds, blocks = Kinds(plan), max(len(plan.partition.q), len(plan.partition.kv))
    expansion = Expansion(loops, plan)
    for t, step in enumerate(plan.steps):
        made, real = expansion.step(t), step.joined()
        said = made.step
        _check_messages(t, said, real, plan.ranks, blocks)
        if not _alike(said.attends, real.attends):
            raise PlanError(f"step {t}: rectangles are not the plan's")
        for attend in said.attends:
            _check_kinds(t, attend, made.kinds, kinds.of(attend))
    return expansion


def claimed(said: Ints, true: Codes) -> Bools:
    """True where a claim holds of a rectangle of that kind: `other` and `any` leave more open."""
    return np.asarray((said == true) | (said == ANY) | ((said == OTHER) & (true == END)))


def _check_kinds(t: int, attend: Attend, said: Ints, true: Codes) -> None:
    wrong = np.flatnonzero(~claimed(said, true))
    if len(wrong):
        rank, kinds = attend.rank[wrong[0]], (KINDS[x[wrong[0]]] for x in (true, said))
        raise PlanError("step {}, rank {}: a rectangle is {}, not {}".format(t, rank, *kinds))


def _check_messages(t: int, made: Step, real: Step, ranks: int, blocks: int) -> None:
    moves, planned = ({move.tensors: move for move in step.moves} for step in (made, real))
    if moves.keys() != planned.keys():
        sent, due = (" ".join(sum(sorted(x), ())) or "nothing" for x in (moves, planned))
        raise PlanError(f"step {t}: its loops would send {sent}, not {due}")
    for tensors in moves:
        said, true = (codes(x[tensors], ranks, blocks) for x in (moves, planned))
        if not np.array_equal(said, true):
            raise PlanError(f"step {t}: messages of {' '.join(tensors)} are not the plan's")


def _alike(made: Sequence[Attend], real: Sequence[Attend]) -> bool:
    """True for the same rectangles, in whatever order they and their blocks stand."""
    if not (made and real):
        return not (made or real)
    (one,), (other,) = made, real
    widths = [max(x.shape[1], y.shape[1]) for x, y in ((one.q, other.q), (one.kv, other.kv))]
    return np.array_equal(_lines(one, widths), _lines(other, widths))


def _lines(rows: Attend, widths: list[int]) -> Ints:
    """Rectangles as lines of numbers, each side ascending, and then the lines."""
    sides = zip((rows.q, rows.kv), widths, strict=True)
    lines = np.hstack([rows.rank[:, None], *(np.sort(widened(x, w), axis=1) for x, w in sides)])
    return lines[np.lexsort(lines.T[::-1])]
