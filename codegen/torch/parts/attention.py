"""The function to call."""

import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.function import called

# ---- The function to call.


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    seq: int | None = None,
) -> Tensor:
    """Exact attention of a sharded sequence; all ranks of the group call it together.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result is like q, with the last dimension of v.
    seq: the queries of all ranks, to be checked; with shards of SEQ tokens it has to be given.
    Raises ValueError on all ranks if one has other shapes, mixed types or a group of another size,
    or if they differ in batch, heads, length, dtype, device, wanted gradients or program.
    """
    return called([q, k, v], group, seq)
