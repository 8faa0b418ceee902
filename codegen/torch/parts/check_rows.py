"""The self-check of a program for one length: of all queries, in long sequences of some."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad  # a rank may have no tokens

from codegen.torch.parts.function import attention

SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = 1
PLAN: dict[str, Any] = {}


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    raise NotImplementedError


def positions(rank: int) -> Tensor:
    raise NotImplementedError


def allowed(i: Tensor, j: Tensor) -> Tensor:
    raise NotImplementedError


# ---- Self-check


def compared(seq: int, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """This rank's out, dq, dk and dv beside dense attention; above 16k tokens, of some queries."""
    rank, seed = dist.get_rank(), torch.Generator().manual_seed(0)
    sizes = (HEADS, seq), (KV_HEADS, KV_SEQ), (KV_HEADS, KV_SEQ), (HEADS, seq)
    q, k, v, dout = (torch.randn(1, *x, HEAD_DIM, generator=seed).to(*kind) for x in sizes)
    chosen, own = torch.rand(seq, generator=seed) < 2**28 / seq**2, positions(rank)
    dout *= chosen[:, None].to(q.device)
    sides = (q, "q"), (k, "kv"), (v, "kv")
    ours: Any = [shard(x, rank, side=side).requires_grad_() for x, side in sides]
    out = attention(*ours)
    out.backward(shard(dout, rank))
    whole: Any = [x.double().requires_grad_() for x in (q, k, v)]
    (q, k, v), parts = whole, list[Tensor]()
    rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    for rows in own[chosen[own]].split(256):
        seen = allowed(rows[:, None] + KV_SEQ - SEQ, torch.arange(KV_SEQ)).to(q.device)
        exact = torch.nn.functional.scaled_dot_product_attention(q[:, :, rows], k, v, seen, **rules)
        exact.backward(dout[:, :, rows].double())
        parts.append(exact)
    pairs = [(out[:, :, chosen[own]], torch.cat(parts, 2))]
    for x, y, (_, side) in zip(ours, whole, sides, strict=True):
        dist.all_reduce(y.grad)
        pairs.append((x.grad, shard(y.grad, rank, side=side)))
    return [(pad(x.flatten(), (0, 1)), pad(y.flatten(), (0, 1))) for x, y in pairs]
