"""The process groups of a program whose ranks form a mesh."""

from functools import cache

import torch.distributed as dist
from torch.distributed import ProcessGroup

OUTER, INNER = 1, 1


@cache
def groups_of(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    """The groups of this rank along both axes of the mesh."""
    outer, inner = divmod(group.rank(), INNER)
    ranks = dist.get_process_group_ranks(group)
    column, row = ranks[inner::INNER], ranks[outer * INNER : (outer + 1) * INNER]
    outer_group, inner_group = (
        dist.new_group(x, use_local_synchronization=True) for x in (column, row)
    )
    return outer_group, inner_group
