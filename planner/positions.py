"""document_positions(plan)   returns the positions for rotary embeddings on each rank."""

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.planner.masks.mask import SideName
from ringloom.planner.masks.regions import Ints
from ringloom.planner.plans import one_plan


def document_positions(plan: Plan, side: SideName = "q") -> tuple[Ints, ...]:
    """Returns each rank's positions within documents, in the order of its shard: int64 [tokens].

    Use them for rotary embeddings. Positions count from the start of each document, in which the
    last query is aligned with the last key; in a tree, along the path from the root; without
    documents, from the start of the sequence. Raises PlanError if only some tokens belong to a
    document.
    """
    work = one_plan(plan, "document_positions").workload
    begins, zero = work.mask.origins(side) or (np.zeros(1, np.int64),) * 2
    offset = work.offset if side == "q" else 0
    shards = (shard + offset for shard in plan.partition.side(side).shards(plan.ranks))
    return tuple(x - zero[(np.searchsorted(begins, x, "right") - 1).clip(0)] for x in shards)
