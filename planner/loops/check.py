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
from ringloom.planner.loops.values import have_same_blocks, message_codes


def check(loops: Loops, plan: Plan) -> Expansion:
    """Returns the expansion of loops; raises PlanError if rows or kinds differ from the plan.

    Compares the rows of each step in any order. Treats messages of the same tensors between the
    same ranks in a step as a single message, accepts other cuts of rectangles, and computes kinds
    again from the mask.
    """
    if loops.steps != len(plan.steps):
        raise PlanError(f"the loops have {loops.steps} steps, the plan has {len(plan.steps)}")
    kinds, blocks = Kinds(plan), max(len(plan.partition.q), len(plan.partition.kv))
    expansion = Expansion(loops, plan)
    for t, step in enumerate(plan.steps):
        expanded, planned = expansion.step(t), step.joined()
        _check_messages(t, expanded, planned, plan.ranks, blocks)
        is_equal = _has_equal_rectangles(expanded.attends, planned.attends)
        if not is_equal and not _has_equal_pairs(plan, expanded, planned):
            raise PlanError(f"step {t}: rectangles are not the plan's")
    for s, steps in expansion.rectangles.items():
        for t, attend in steps.items():
            if s.kind != "tiles":
                _check_kinds(t, attend, s.kind, kinds.of(attend))
    return expansion


def _check_kinds(t: int, attend: Attend, stated: Kind, actual: Codes) -> None:
    """Raises PlanError for rectangles whose kind is not the stated one."""
    is_correct = actual == KINDS.index(stated)
    if not is_correct.all():
        n = int(is_correct.argmin())
        kinds = f"a rectangle is {KINDS[actual[n]]}, not {stated}"
        raise PlanError(f"step {t}, rank {attend.rank[n]}: {kinds}")


def _check_messages(t: int, expanded: Step, planned: Step, ranks: int, blocks: int) -> None:
    moves, expected = ({move.tensors: move for move in step.moves} for step in (expanded, planned))
    if moves.keys() != expected.keys():
        names = (" ".join(sum(sorted(x), ())) or "nothing" for x in (moves, expected))
        raise PlanError(f"step {t}: its loops would send {next(names)}, not {next(names)}")
    for tensors in moves:
        a, b = (message_codes(x[tensors], ranks, blocks) for x in (moves, expected))
        if not np.array_equal(a, b):
            raise PlanError(f"step {t}: messages of {' '.join(tensors)} are not the plan's")


def _has_equal_rectangles(expanded: Sequence[Attend], planned: Sequence[Attend]) -> bool:
    """Returns True for equal rectangles.

    Rectangles of a rank with the same last blocks must be in the same order.
    """
    if not (expanded and planned):
        return not (expanded or planned)
    (ranks, *sides), (planned_ranks, *planned_sides) = (
        _sorted_columns(*rows) for rows in (expanded, planned)
    )
    return np.array_equal(ranks, planned_ranks) and all(map(have_same_blocks, sides, planned_sides))


def _has_equal_pairs(plan: Plan, expanded: Step, planned: Step) -> bool:
    """Returns True if the pairs are equal and no expanded rectangle has a dead block."""
    if not (expanded.attends and planned.attends):
        return False
    (rows,), (planned_rows,) = expanded.attends, planned.attends  # the steps are joined
    live = tiles(plan).live(rows.q[:, :, None], rows.kv[:, None, :])
    used = ((live.any(axis=2) | (rows.q < 0)).all(), (live.any(axis=1) | (rows.kv < 0)).all())
    pairs, expected = (live_pairs(tiles(plan), node) for node in (rows, planned_rows))
    return all(used) and np.array_equal(pairs, expected)


def _sorted_columns(rows: Attend) -> tuple[Ints, ...]:
    """Returns the columns of rectangles, sorted by rank and then by last blocks."""
    order = np.lexsort((rows.kv.max(axis=1), rows.q.max(axis=1), rows.rank))
    return rows.rank[order], rows.q[order], rows.kv[order]
