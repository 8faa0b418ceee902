"""The function to call, and the shapes that it takes."""

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.stubs import forward

RANKS = 1


# ---- The function to call.


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sinks: Tensor | None = None,  # sinks
    group: dist.ProcessGroup | None = None,
    seq: int | None = None,
) -> Tensor:
    """Exact attention of a sharded sequence; all ranks of the group call it together.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result is like q.
    The result has the last dimension of v.  # unequal
    sinks: [heads], alike on all ranks; its gradient is a share: sum it over the group.  # sinks
    seq: the queries of all ranks, to be checked; with shards of SEQ tokens it has to be given.
    Raises ValueError on all ranks if one has other shapes, mixed types or a group of another size,
    or if they differ in batch, heads, length, dtype, device, wanted gradients or program.
    """
    if (group := group or dist.group.WORLD) is None or group.size() != RANKS:
        raise ValueError(f"the program is for {RANKS} ranks, not {group and group.size()}")
    wanted = [(1, 1, 1, 1)]  # :shapes
    hint = ": pass shard(x, rank)"  # alike
    hint = ": pass shard(x, rank), of k and v shard(x, rank, side='kv')"  # apart
    wrong = [
        f"{name} is {x.dtype} {[*x.shape]} on {x.device}, not {q.dtype} {[*shape]} on {q.device}, "
        "of a float type" + hint * (x.shape[2:3] != shape[2:3])
        for name, x, shape in zip(("q", "k", "v"), (q, k, v), wanted, strict=True)
        if (x.shape, x.dtype, x.device) != (shape, q.dtype, q.device) or not x.is_floating_point()
    ]
    if q.shape[1] % max(1, k.shape[1]):  # whole
        wrong.append(f"{q.shape[1]} heads are no multiple of {k.shape[1]} KV heads")
    inputs = [q, k, v]
    if sinks is None or [*sinks.shape] != [q.shape[1]]:  # sinks
        wrong.append(f"sinks are {sinks if sinks is None else [*sinks.shape]}, not [heads]")
    inputs.append(q if sinks is None else sinks)  # sinks
    if wrong and any(x.is_meta for x in inputs):
        raise ValueError(wrong[0])
    if any(torch.autograd.forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise NotImplementedError("derivatives in forward mode: there are those of backward only")
    grads = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    about = f"gradients {'wanted' if grads else 'not wanted'}", (wrong or [""])[0]
    whole = -1 if seq is None else seq
    return forward(*[x.contiguous() for x in inputs], group.group_name, *about, whole)[0]
