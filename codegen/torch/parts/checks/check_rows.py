"""The self-check of a program, of all queries or, in long sequences, some; of one pass or both."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from codegen.torch.parts.stubs import allowed, attention, positions, shard

SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = V_HEAD_DIM = 1
PLAN: dict[str, Any] = {}


# ---- Self-check


def dense_with_sinks(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sinks: Tensor) -> Tensor:
    """Attention by its definition: a softmax over the keys and a logit of each head."""
    scores = q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].mT * PLAN["scale"]
    logits = sinks.view(1, k.shape[1], -1, 1, 1).expand(*scores.shape[:4], 1)
    weights = torch.cat([scores.masked_fill(~seen, -torch.inf), logits], -1).softmax(-1)
    return (weights[..., :-1] @ v[:, :, None]).flatten(1, 2)


def compared(seq: Any, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """This rank's results beside those of dense attention; above 16k tokens, of some queries."""
    rank, keys, rng = dist.get_rank(), seq + KV_SEQ - SEQ, torch.Generator().manual_seed(0)  # bound
    rank, keys, rng = dist.get_rank(), seq.kv_seq, torch.Generator().manual_seed(0)  # given
    tables, seq = seq, seq.seq  # given
    sizes = (HEADS, seq), (KV_HEADS, keys), (KV_HEADS, keys)
    q, k, v = (torch.randn(1, *x, HEAD_DIM, generator=rng).to(*kind) for x in sizes)
    chosen, own = torch.rand(seq, generator=rng) < 2**28 / seq**2, positions(rank, seq)  # bound
    chosen, own = torch.rand(seq, generator=rng) < 2**28 / seq**2, positions(rank, tables)  # given
    v = torch.randn(*v.shape[:3], V_HEAD_DIM, generator=rng).to(*kind)  # unequal
    dout = torch.randn(q.shape, generator=rng).to(*kind) * chosen[:, None].to(q.device)  # backward
    noise = torch.randn(*q.shape[:3], V_HEAD_DIM, generator=rng)  # unequal backward
    dout = noise.to(dout) * dout[..., :1]  # unequal backward
    sinks: Any = torch.randn(HEADS, generator=rng).to(*kind)  # sinks
    sides, parts = ((q, "q"), (k, "kv"), (v, "kv")), list[Tensor]()
    ours: Any = [shard(x, rank, side=side).requires_grad_() for x, side in sides]  # bound
    ours = [shard(x, rank, tables, side=side).requires_grad_() for x, side in sides]  # given
    out = attention(*ours, seq=seq)  # sinkless bound
    out = attention(*ours, sinks=sinks.requires_grad_(), seq=seq)  # sinks
    out = attention(ours[0], ours[1], ours[2], tables)  # given
    out.backward(shard(dout, rank))  # backward bound
    if tables.both:  # given
        out.backward(shard(dout, rank, tables))
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}  # sinkless
    logits = sinks.detach().double().requires_grad_()  # sinks
    for rows in own[chosen[own]].split(256):
        i, j = rows[:, None] + KV_SEQ - SEQ, torch.arange(keys)  # bound
        seen = allowed(i, j).to(q.device)  # bound  # :seen
        seen = allowed(rows, tables).to(q.device)  # given
        parts.append(scaled_dot_product_attention(q[:, :, rows], k, v, seen, **rules))  # sinkless
        parts.append(dense_with_sinks(q[:, :, rows], k, v, seen, logits))  # sinks
        parts[-1].backward(dout[:, :, rows].double())  # backward
    pairs = [(out[:, :, chosen[own]], torch.cat(parts, 2))]
    for x, y, (_, side) in zip(ours, (q, k, v), sides, strict=True):  # backward
        if not tables.both:  # given
            break
        dist.all_reduce(y.grad)
        pairs.append((x.grad, shard(y.grad, rank, side=side)))  # bound
        pairs.append((x.grad, shard(y.grad, rank, tables, side=side)))  # given
    shares: Any = sinks.grad.double(), logits.grad  # sinks backward
    for x in shares:  # sinks backward
        dist.all_reduce(x)
    pairs.append(shares)  # sinks backward
    return [(pad(x.flatten(), (0, 1)), pad(y.flatten(), (0, 1))) for x, y in pairs]  # never empty
