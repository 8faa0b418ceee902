"""kept_exchanges(passes)   finds the forward exchanges whose copies a backward pass starts with."""

from collections.abc import Sequence

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, Exchange

Kept = dict[str, Exchange]  # by side


def kept_exchanges(passes: Sequence[Expansion]) -> Kept:
    """Returns the exchanges of the forward loops that brought the backward plan's initial copies.

    Raises PlanError for copies other than Q with OUT, and KV, for copies that no exchange of the
    forward pass brought, and if DOUT arrives for other queries.
    """
    tensors = {tensor for rows in passes for node in rows.plan.start for tensor in node.tensors}
    if not tensors:
        return {}
    if not tensors <= {"Q", "OUT", "KV"} or len(tensors & {"Q", "OUT"}) == 1:
        raise PlanError(f"the backward pass starts with copies of {', '.join(sorted(tensors))}")
    kept: Kept = {}
    forward, backward = (rows.tables for rows in passes)
    for side, table in ((side, table) for (side, name), table in backward.items() if name == HELD):
        first, last = ([s for s in x.loops.exchanges.values() if s.side == side] for x in passes)
        gradients = (s for s in last if s.tensors == ("DOUT",))
        if not all(np.array_equal(backward[side, s.name], table) for s in gradients):
            raise PlanError("the backward pass receives DOUT for queries other than its copies")
        matches = [s for s in first if np.array_equal(forward[side, s.name], table)]
        if not matches:
            raise PlanError("the backward pass starts with copies that no exchange brought")
        if matches[-1].gathers and matches[-1].heads:
            raise PlanError("the backward pass starts with copies of only some heads")
        kept[side] = matches[-1]
    return kept
