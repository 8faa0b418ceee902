"""The function to call, and the shapes that it takes."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.function import operator

RANKS, HEAD_DIM, PIECES = 1, 1, 1


def expected(q: Tensor, k: Tensor, rank: int) -> tuple[int, int, int, int]:
    raise NotImplementedError


# ---- The function to call.


def attention(q: Tensor, k: Tensor, v: Tensor, *, group: ProcessGroup | None = None) -> Tensor:
    """Exact attention of a sharded sequence; all ranks of the group call it together.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result is like q. Raises ValueError for other shapes, mixed types or another group size.
    """
    group = group or dist.group.WORLD
    if group is None or group.size() != RANKS:
        size = group.size() if group else "no group is initialized"
        raise ValueError(f"the program is for {RANKS} ranks, not {size}")
    heads, kv_heads, tokens, kv_tokens = expected(q, k, group.rank())
    wanted = [[len(q), heads, tokens, HEAD_DIM], *[[len(q), kv_heads, kv_tokens, HEAD_DIM]] * 2]
    shapes = [[*x.shape] for x in (q, k, v)]
    if shapes != wanted or tokens % PIECES or heads % kv_heads:
        raise ValueError(f"q, k, v are {shapes}, not {wanted} with tokens that {PIECES} divides")
    kinds = {(x.dtype, x.device) for x in (q, k, v)}
    if len(kinds) > 1 or not q.is_floating_point():
        raise ValueError(f"q, k and v must be of one float type, on one device: {kinds}")
    out: Tensor = operator(q.contiguous(), k.contiguous(), v.contiguous(), group.group_name)[0]
    return out
