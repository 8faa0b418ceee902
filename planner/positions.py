"""document_positions(plan)   what rotary embeddings count on each rank."""

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.planner.masks.mask import SideName
from ringloom.planner.masks.regions import Ints
from ringloom.planner.plans import one_plan


def document_positions(plan: Plan, side: SideName = "q") -> tuple[Ints, ...]:
    """Returns each rank's positions inside documents, in the order of its shard: int64 [tokens].

    They are what rotary embeddings count: of documents from the beginning of each, its last query
    being at its last key; of a tree along the path from its root; without either the sequence.
    Raises PlanError where the mask has documents, but not one for every token.
    """
    work = one_plan(plan, "document_positions").workload
    begins, zero = work.mask.origins(side) or (np.zeros(1, np.int64),) * 2
    ahead = work.offset if side == "q" else 0
    places = (shard + ahead for shard in plan.partition.side(side).shards(plan.ranks))
    return tuple(x - zero[(np.searchsorted(begins, x, "right") - 1).clip(0)] for x in places)
