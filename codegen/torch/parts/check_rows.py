"""The self-check of a program, of all queries or, in long sequences, some; of one pass or both."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from codegen.torch.parts.function import attention

SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = 1
PLAN: dict[str, Any] = {}


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    raise NotImplementedError


def positions(rank: int, seq: int) -> Tensor:
    raise NotImplementedError


def allowed(i: Tensor, j: Tensor) -> Tensor:
    raise NotImplementedError


# ---- Self-check


def compared(seq: int, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """This rank's results beside those of dense attention; above 16k tokens, of some queries."""
    rank, keys, seed = dist.get_rank(), seq + KV_SEQ - SEQ, torch.Generator().manual_seed(0)
    sizes = (HEADS, seq), (KV_HEADS, keys), (KV_HEADS, keys)
    q, k, v = (torch.randn(1, *x, HEAD_DIM, generator=seed).to(*kind) for x in sizes)
    chosen, own = torch.rand(seq, generator=seed) < 2**28 / seq**2, positions(rank, seq)
    dout = torch.randn(q.shape, generator=seed).to(*kind) * chosen[:, None].to(q.device)  # backward
    sides = (q, "q"), (k, "kv"), (v, "kv")
    ours: Any = [shard(x, rank, side=side).requires_grad_() for x, side in sides]
    out = attention(*ours)
    out.backward(shard(dout, rank))  # backward
    whole: Any = [x.double().requires_grad_() for x in (q, k, v)]
    (q, k, v), parts = whole, list[Tensor]()
    rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    for rows in own[chosen[own]].split(256):
        seen = allowed(rows[:, None] + KV_SEQ - SEQ, torch.arange(keys)).to(q.device)
        parts.append(scaled_dot_product_attention(q[:, :, rows], k, v, seen, **rules))
        parts[-1].backward(dout[:, :, rows].double())  # backward
    pairs = [(out[:, :, chosen[own]], torch.cat(parts, 2))]
    for x, y, (_, side) in zip(ours, whole, sides, strict=True):  # backward
        dist.all_reduce(y.grad)  # backward
        pairs.append((x.grad, shard(y.grad, rank, side=side)))  # backward
    return [(pad(x.flatten(), (0, 1)), pad(y.flatten(), (0, 1))) for x, y in pairs]  # never empty
