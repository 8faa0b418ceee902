"""The function to call, in a program with sinks."""

import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.function import checked_attention

# ---- The function to call.


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sinks: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    seq: int | None = None,
) -> Tensor:
    """Compute exact attention over a sharded sequence; all ranks of the group must call it.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result has the shape of q with the last dimension of v.
    sinks: [heads], equal on all ranks; its gradient is partial: sum it over the group.
    seq: the total number of queries, checked if given; required if shards have SEQ tokens.
    Raises ValueError on all ranks if any rank has wrong shapes, mixed dtypes or the wrong group
    size, or if ranks differ in batch, heads, length, dtype, device, gradients or program.
    """
    return checked_attention([q, k, v, sinks], group, seq)
