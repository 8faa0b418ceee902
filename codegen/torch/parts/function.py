"""The function to call, and the shapes that it takes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.stubs import forward, sinks

RANKS = 1


# ---- The function to call.


def attention(q: Tensor, k: Tensor, v: Tensor, *, group: Any = None) -> Tensor:  # :head
    """Exact attention of a sharded sequence; all ranks of the group call it together.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result is like q. Raises ValueError for other shapes, mixed types or another group size.
    The result has the last dimension of v.  # unequal
    sinks: [heads], alike on all ranks; its gradient is a share: sum it over the group.  # sinks
    """
    if (group := group or dist.group.WORLD) is None or group.size() != RANKS:
        raise ValueError(f"the program is for {RANKS} ranks, not {group and group.size()}")
    given = [([*x.shape], x.dtype, x.device) for x in (q, k, v)]
    wanted = given  # :shapes
    if given != wanted or not q.is_floating_point():  # :wrong
        raise ValueError(f"q, k, v are {given}, not {wanted} of a float type")
    if sinks is None or [*sinks.shape] != [q.shape[1]]:  # sinks
        raise ValueError(f"sinks are {sinks if sinks is None else [*sinks.shape]}, not [heads]")
    if any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v)):  # :ad
        raise NotImplementedError("derivatives in forward mode: there are those of backward only")
    return forward(q.contiguous(), k.contiguous(), v.contiguous(), group.group_name)[0]  # :call
