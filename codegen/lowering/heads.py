"""refuse_other_heads(rows)   refuses keys with other heads than those that their queries need."""

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Attend, Ints
from ringloom.planner.partitions import Side


def refuse_other_heads(rows: Expansion) -> None:
    """Raises PlanError if keys that are attended have other heads than their queries need."""
    sides, group = rows.plan.partition, rows.plan.workload.group
    for s in (s for s in rows.loops.statements if isinstance(s, Attend)):
        for rectangle in rows.rectangles[s].values():
            first, last = _heads(sides.q, rectangle.q)
            low, high = _heads(sides.kv, rectangle.kv)
            one = (high - low == 1) & (low * group <= first) & (last <= high * group)
            if (~one & ((first != low * group) | (last != high * group))).any():
                raise PlanError("keys that are attended have other heads than their queries")


def _heads(side: Side, blocks: Ints) -> tuple[Ints, Ints]:
    """The first head of blocks [rows, w], -1 for none, and the one after the last: [rows]."""
    ends = np.array([(part[0], part[-1] + 1) for part in side.slices])
    first, last = ends[side.slice[blocks]].transpose(2, 0, 1)
    here = blocks >= 0
    return np.where(here, first, 1 << 30).min(axis=1), np.where(here, last, 0).max(axis=1)
