"""refuse_other_heads(rows)   refuses keys whose heads are not those that their queries need."""

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Attend, Ints
from ringloom.planner.partitions import Side


def refuse_other_heads(rows: Expansion) -> None:
    """Raises PlanError if queries attend to keys of other heads than they need."""
    sides, group = rows.plan.partition, rows.plan.workload.group
    for s in (s for s in rows.loops.statements if isinstance(s, Attend)):
        for rectangle in rows.rectangles[s].values():
            first, last = _heads(sides.q, rectangle.q)
            low, high = _heads(sides.kv, rectangle.kv)
            within = (high - low == 1) & (low * group <= first) & (last <= high * group)
            if (~within & ((first != low * group) | (last != high * group))).any():
                raise PlanError("queries attend to keys of other heads than they need")


def _heads(side: Side, blocks: Ints) -> tuple[Ints, Ints]:
    """Returns the first head and the end of the heads of blocks [rows, w]: [rows]; -1 is none."""
    ends = np.array([(part[0], part[-1] + 1) for part in side.slices])
    first, end = ends[side.slice[blocks]].transpose(2, 0, 1)
    present = blocks >= 0
    return np.where(present, first, 1 << 30).min(axis=1), np.where(present, end, 0).max(axis=1)
