"""check(loops, plan)   verifies that a loop form expands to exactly the rows of its plan."""

from collections.abc import Sequence

import numpy as np

from ringloom.planner.analysis.kinds import KINDS, Codes, Kind, Kinds
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, Plan, Step
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints, Loops
from ringloom.planner.loops.meetings import live_pairs
from ringloom.planner.loops.values import codes, same


def check(loops: Loops, plan: Plan) -> Expansion:
    """Returns the expansion of loops; raises PlanError if rows or kinds are not the plan's.

    Compares rows step by step in any order. Messages of the same tensors between the same ranks in
    a step count as one; rectangles may be cut differently. Kinds are computed again from the mask.
    """
    if loops.steps != len(plan.steps):
        raise PlanError(f"the loops have {loops.steps} steps, the plan has {len(plan.steps)}")
    kinds, blocks = Kinds(plan), max(len(plan.partition.q), len(plan.partition.kv))
    expansion = Expansion(loops, plan)
    for t, step in enumerate(plan.steps):
        made, real = expansion.step(t), step.joined()
        _check_messages(t, made, real, plan.ranks, blocks)
        if not _alike(made.attends, real.attends) and not _same_pairs(plan, made, real):
            raise PlanError(f"step {t}: rectangles are not the plan's")
    for s, steps in expansion.rectangles.items():
        for t, attend in steps.items():
            if s.kind != "tiles":
                _check_kinds(t, attend, s.kind, kinds.of(attend))
    return expansion


def _check_kinds(t: int, attend: Attend, said: Kind, true: Codes) -> None:
    """Raises PlanError for rectangles that are of another kind than stated."""
    right = true == KINDS.index(said)
    if not right.all():
        n = int(right.argmin())
        kinds = f"a rectangle is {KINDS[true[n]]}, not {said}"
        raise PlanError(f"step {t}, rank {attend.rank[n]}: {kinds}")


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
    """Returns True for equal rectangles; those of a rank with equal last blocks in equal order."""
    if not (made and real):
        return not (made or real)
    (ranks, *sides), (real_ranks, *real_sides) = (_ordered(*rows) for rows in (made, real))
    return np.array_equal(ranks, real_ranks) and all(map(same, sides, real_sides))


def _same_pairs(plan: Plan, made: Step, real: Step) -> bool:
    """Returns True for rectangles with the same pairs, cut differently, without dead blocks."""
    if not (made.attends and real.attends):
        return False
    (rows,), (planned,) = made.attends, real.attends  # both steps are joined
    live = tiles(plan).live(rows.q[:, :, None], rows.kv[:, None, :])
    used = ((live.any(axis=2) | (rows.q < 0)).all(), (live.any(axis=1) | (rows.kv < 0)).all())
    pairs, due = (live_pairs(tiles(plan), node) for node in (rows, planned))
    return all(used) and np.array_equal(pairs, due)


def _ordered(rows: Attend) -> tuple[Ints, ...]:
    """Returns the columns of rectangles, sorted by rank and then by last blocks."""
    order = np.lexsort((rows.kv.max(axis=1), rows.q.max(axis=1), rows.rank))
    return rows.rank[order], rows.q[order], rows.kv[order]
