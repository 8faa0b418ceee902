"""The self-check of a forward-only program."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.check import dense
from codegen.torch.parts.function import attention

SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = 1


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    raise NotImplementedError


def positions(rank: int, seq: int = SEQ) -> Tensor:
    raise NotImplementedError


# ---- Self-check


def compared(seq: int, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """This rank's out, above 16k tokens some of it, beside dense attention in float64."""
    rank, seed = dist.get_rank(), torch.Generator().manual_seed(0)
    sizes = (HEADS, seq), (KV_HEADS, seq + KV_SEQ - SEQ), (KV_HEADS, seq + KV_SEQ - SEQ)
    q, k, v = (torch.randn(1, *x, HEAD_DIM, generator=seed).to(*kind) for x in sizes)
    out = attention(*(shard(x, rank, side=side) for x, side in ((q, "q"), (k, "kv"), (v, "kv"))))
    own = positions(rank, seq)
    at = torch.randperm(len(own), generator=seed)[: 2**28 // seq]
    parts = [dense(q.double(), k.double(), v.double(), rows) for rows in own[at].split(256)]
    return [(out[:, :, at], torch.cat(parts, 2))]
