"""The self-check of a program that takes any length: of all tokens, at a short length."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.stubs import allowed, attention, shard

HEADS, KV_HEADS, HEAD_DIM = 1, 1, 1
PLAN: dict[str, Any] = {}


# ---- Self-check


def compared(seq: int, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """This rank's out, dq, dk and dv, each beside that of dense attention in float64."""
    rank, seed = dist.get_rank(), torch.Generator().manual_seed(0)
    heads = HEADS, KV_HEADS, KV_HEADS, HEADS
    q, k, v, dout = (torch.randn(1, n, seq, HEAD_DIM, generator=seed).to(*kind) for n in heads)
    ours = [shard(x, rank).requires_grad_() for x in (q, k, v)]
    results = (out := attention(*ours, seq=seq)), *torch.autograd.grad(out, ours, shard(dout, rank))
    q, k, v = whole = [x.double().requires_grad_() for x in (q, k, v)]
    rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    i, j = torch.arange(seq)[:, None], torch.arange(seq)
    seen = allowed(i, j).to(q.device)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, **rules)
    wanted = exact, *torch.autograd.grad(exact, whole, dout.double())
    return [(x, shard(y, rank)) for x, y in zip(results, wanted, strict=True)]
