"""The function to call, where the forward pass keeps copies for the backward pass."""

import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group as group_named

from codegen.torch.parts.merge import wide
from codegen.torch.parts.shards import check_shards

RANKS = 1


def forward(
    q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor, list[Tensor]]:
    raise NotImplementedError


def kept_like(q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup) -> list[Tensor]:
    raise NotImplementedError


# ---- The function to call.


def attention(q: Tensor, k: Tensor, v: Tensor, *, group: ProcessGroup | None = None) -> Tensor:
    """Exact attention of a sharded sequence; all ranks of the group call it together.

    q: [batch, heads, tokens, dim], k and v: [batch, KV heads, tokens, dim], this rank's shards;
    the result is like q. Raises ValueError for other shapes, mixed types or too few ranks.
    """
    group = group or dist.group.WORLD
    if group is None or group.size() != RANKS:
        size = group.size() if group else "not been initialized"
        raise ValueError(f"the program is for {RANKS} ranks, but the group has {size}")
    check_shards(q, k, v, group.rank())
    q, k, v = (x.contiguous() for x in (q, k, v))
    out: Tensor = attend_shards(q, k, v, group.group_name)[0]
    return out


digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


@torch.library.custom_op(f"ringloom::attention_{digest}", mutates_args=())
def attend_shards(
    q: Tensor, k: Tensor, v: Tensor, group: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output, log-sum-exp and copies: one operator for compilers and checkpoint policies."""
    return forward(q, k, v, group_named(group))


@attend_shards.register_fake
def like_results(
    q: Tensor, k: Tensor, v: Tensor, group: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    kept = kept_like(q, k, v, group_named(group))
    return torch.empty_like(q), torch.empty_like(q[..., :1], dtype=wide(q)), kept
