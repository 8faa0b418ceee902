"""Compares one pass or both with dense attention, on a sample of the queries if they are many."""

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
    """Compute attention by its definition: a softmax over all keys and the sink logit per head."""
    scores = q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].mT * PLAN["scale"]
    logits = sinks.view(1, k.shape[1], -1, 1, 1).expand(*scores.shape[:4], 1)
    weights = torch.cat([scores.masked_fill(~seen, -torch.inf), logits], -1).softmax(-1)
    return (weights[..., :-1] @ v[:, :, None]).flatten(1, 2)


def compare_with_dense(seq: Any, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return this rank's results, each with that of dense attention; above 16k tokens, a sample."""
    rank, rng = dist.get_rank(), torch.Generator().manual_seed(0)
    if DYNAMIC:
        tables, kv_seq, seq = seq, seq.kv_seq, seq.seq
        local = positions(rank, tables)
    else:
        kv_seq, local = seq + KV_SEQ - SEQ, positions(rank, seq)
    sizes = (HEADS, seq, HEAD_DIM), (KV_HEADS, kv_seq, HEAD_DIM), (KV_HEADS, kv_seq, V_HEAD_DIM)
    q, k, v = (torch.randn(1, *x, generator=rng).to(*kind) for x in sizes)
    sample = torch.rand(seq, generator=rng) < 2**28 / seq**2
    if BACKWARD:
        dout = torch.randn(*q.shape[:3], V_HEAD_DIM, generator=rng).to(*kind)
        dout *= sample[:, None].to(q.device)
    if SINKS:
        sinks: Any = torch.randn(HEADS, generator=rng).to(*kind)
    sides, parts = ((q, "q"), (k, "kv"), (v, "kv")), list[Tensor]()
    if DYNAMIC:
        shards: Any = [shard(x, rank, tables, side=side).requires_grad_() for x, side in sides]
        out = attention(shards[0], shards[1], shards[2], tables)
        if tables.has_backward:
            out.backward(shard(dout, rank, tables))
    else:
        shards = [shard(x, rank, side=side).requires_grad_() for x, side in sides]
        if SINKS:
            out = attention(*shards, sinks=sinks.requires_grad_(), seq=seq)
        else:
            out = attention(*shards, seq=seq)
        if BACKWARD:
            out.backward(shard(dout, rank))
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    if SINKS:
        logits = sinks.detach().double().requires_grad_()
    else:
        options: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    for rows in local[sample[local]].split(256):
        if DYNAMIC:
            seen = allowed(rows, tables).to(q.device)
        else:
            i, j = rows[:, None] + KV_SEQ - SEQ, torch.arange(kv_seq)
            seen = allowed(i, j).to(q.device)
        if SINKS:
            parts.append(dense_with_sinks(q[:, :, rows], k, v, seen, logits))
        else:
            parts.append(scaled_dot_product_attention(q[:, :, rows], k, v, seen, **options))
        if BACKWARD:
            parts[-1].backward(dout[:, :, rows].double())
    pairs = [(out[:, :, sample[local]], torch.cat(parts, 2))]
    if BACKWARD and (not DYNAMIC or tables.has_backward):
        for x, y, (_, side) in zip(shards, (q, k, v), sides, strict=True):
            dist.all_reduce(y.grad)
            if DYNAMIC:
                dense_grad = shard(y.grad, rank, tables, side=side)
            else:
                dense_grad = shard(y.grad, rank, side=side)
            pairs.append((x.grad, dense_grad))
    if SINKS and BACKWARD:
        sink_grads: Any = sinks.grad.double(), logits.grad
        for x in sink_grads:
            dist.all_reduce(x)
        pairs.append(sink_grads)
    return [(pad(x.flatten(), (0, 1)), pad(y.flatten(), (0, 1))) for x, y in pairs]  # none is empty
