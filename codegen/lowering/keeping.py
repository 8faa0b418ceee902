"""kept(passes)   the exchanges of a forward pass whose values a backward pass begins with."""

from collections.abc import Sequence

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, Exchange

Kept = dict[str, Exchange]  # by side


def kept(passes: Sequence[Expansion]) -> Kept:
    """The copies that a backward plan starts with, in the words of the forward loops.

    Raises PlanError for others than Q with OUT, and KV, for those that no exchange of the forward
    pass brought, and where DOUT comes for other queries.
    """
    tensors = {tensor for rows in passes for node in rows.plan.start for tensor in node.tensors}
    if not tensors:
        return {}
    if not tensors <= {"Q", "OUT", "KV"} or len(tensors & {"Q", "OUT"}) == 1:
        raise PlanError(f"the backward pass begins with copies of {', '.join(sorted(tensors))}")
    made: Kept = {}
    brought, back = (rows.tables for rows in passes)
    for side, table in ((side, table) for (side, name), table in back.items() if name == HELD):
        first, last = ([s for s in x.loops.exchanges.values() if s.side == side] for x in passes)
        again = (s for s in last if s.tensors == ("DOUT",))
        if not all(np.array_equal(back[side, s.name], table) for s in again):
            raise PlanError("the backward pass gets gradients of other outputs than it has")
        alike = [s for s in first if np.array_equal(brought[side, s.name], table)]
        if not alike:
            raise PlanError("the backward pass begins with copies that no exchange brought")
        if alike[-1].gathers and alike[-1].heads:
            raise PlanError("the backward pass begins with keys of some heads")
        made[side] = alike[-1]
    return made
