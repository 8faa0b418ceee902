"""The comparison with dense attention: one pass or both, on all or (if long) some queries."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ringloom.codegen.torch.parts.stubs import allowed, attention, positions, shard

SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = V_HEAD_DIM = 1
PLAN: dict[str, Any] = {}
DYNAMIC = BACKWARD = SINKS = True


# ---- Self-check


def dense_with_sinks(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sinks: Tensor) -> Tensor:
    """Compute attention by definition: a softmax over the keys and the sink logit of each head."""
    scores = q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].mT * PLAN["scale"]
    logits = sinks.view(1, k.shape[1], -1, 1, 1).expand(*scores.shape[:4], 1)
    weights = torch.cat([scores.masked_fill(~seen, -torch.inf), logits], -1).softmax(-1)
    return (weights[..., :-1] @ v[:, :, None]).flatten(1, 2)


def compare_with_dense(seq: Any, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return this rank's results with those of dense attention; above 16k tokens, a sample."""
    rank, rng = dist.get_rank(), torch.Generator().manual_seed(0)
    if DYNAMIC:
        tables, keys, seq = seq, seq.kv_seq, seq.seq
        own = positions(rank, tables)
    else:
        keys, own = seq + KV_SEQ - SEQ, positions(rank, seq)
    sizes = (HEADS, seq, HEAD_DIM), (KV_HEADS, keys, HEAD_DIM), (KV_HEADS, keys, V_HEAD_DIM)
    q, k, v = (torch.randn(1, *x, generator=rng).to(*kind) for x in sizes)
    chosen = torch.rand(seq, generator=rng) < 2**28 / seq**2
    if BACKWARD:
        dout = torch.randn(*q.shape[:3], V_HEAD_DIM, generator=rng).to(*kind)
        dout *= chosen[:, None].to(q.device)
    if SINKS:
        sinks: Any = torch.randn(HEADS, generator=rng).to(*kind)
    sides, parts = ((q, "q"), (k, "kv"), (v, "kv")), list[Tensor]()
    if DYNAMIC:
        ours: Any = [shard(x, rank, tables, side=side).requires_grad_() for x, side in sides]
        out = attention(ours[0], ours[1], ours[2], tables)
        if tables.both:
            out.backward(shard(dout, rank, tables))
    else:
        ours = [shard(x, rank, side=side).requires_grad_() for x, side in sides]
        if SINKS:
            out = attention(*ours, sinks=sinks.requires_grad_(), seq=seq)
        else:
            out = attention(*ours, seq=seq)
        if BACKWARD:
            out.backward(shard(dout, rank))
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    if SINKS:
        logits = sinks.detach().double().requires_grad_()
    else:
        rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    for rows in own[chosen[own]].split(256):
        if DYNAMIC:
            seen = allowed(rows, tables).to(q.device)
        else:
            i, j = rows[:, None] + KV_SEQ - SEQ, torch.arange(keys)
            seen = allowed(i, j).to(q.device)
        if SINKS:
            parts.append(dense_with_sinks(q[:, :, rows], k, v, seen, logits))
        else:
            parts.append(scaled_dot_product_attention(q[:, :, rows], k, v, seen, **rules))
        if BACKWARD:
            parts[-1].backward(dout[:, :, rows].double())
    pairs = [(out[:, :, chosen[own]], torch.cat(parts, 2))]
    if BACKWARD and (not DYNAMIC or tables.both):
        for x, y, (_, side) in zip(ours, (q, k, v), sides, strict=True):
            dist.all_reduce(y.grad)
            if DYNAMIC:
                whole = shard(y.grad, rank, tables, side=side)
            else:
                whole = shard(y.grad, rank, side=side)
            pairs.append((x.grad, whole))
    if SINKS and BACKWARD:
        shares: Any = sinks.grad.double(), logits.grad
        for x in shares:
            dist.all_reduce(x)
        pairs.append(shares)
    return [(pad(x.flatten(), (0, 1)), pad(y.flatten(), (0, 1))) for x, y in pairs]  # never empty
