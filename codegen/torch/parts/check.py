"""The self-check of a program: its own output and gradients beside dense attention in float64."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.shards import attention

RANKS = SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = CHECKED = 1
PLAN: dict[str, Any] = {}


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    raise NotImplementedError


def positions(rank: int, seq: int = SEQ) -> Tensor:
    raise NotImplementedError


def allowed(i: Tensor, j: Tensor) -> Tensor:
    raise NotImplementedError


# ---- Self-check: every rank compares its own rows with dense attention in float64.


def errors(rank: int, seq: int, dtype: torch.dtype, device: str) -> list[float]:
    """The largest errors of out, dq, dk and dv on random inputs; above 16k tokens, of some rows."""
    random, sizes = torch.Generator().manual_seed(0), (seq, *[seq + KV_SEQ - SEQ] * 2, seq)
    shapes = zip((HEADS, KV_HEADS, KV_HEADS, HEADS), sizes, strict=True)
    q, k, v, dout = (torch.randn(1, *x, HEAD_DIM, generator=random).to(dtype) for x in shapes)
    chosen = torch.rand(seq, generator=random) < (512 / seq if seq > 2**14 else 1)
    dout *= chosen[:, None]
    sides = (q, "q"), (k, "kv"), (v, "kv")
    ours = [shard(x, rank, side=side).to(device).requires_grad_() for x, side in sides]
    out = attention(*ours)
    results = torch.autograd.grad(out, ours, shard(dout, rank).to(device))
    rows, outs = positions(rank, seq), list[Tensor]()
    q, k, v = dense = [x.double().requires_grad_() for x in (q, k, v)]
    totals = [torch.zeros_like(x, device=device) for x in dense]
    for i in rows[chosen[rows]].split(64):
        seen = allowed(i[:, None] + KV_SEQ - SEQ, torch.arange(sizes[1])[None])
        scores = q[:, :, i].unflatten(1, (KV_HEADS, -1)) @ k[:, :, None].mT * PLAN["scale"]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        outs.append((weights @ v[:, :, None]).flatten(1, 2))
        parts = torch.autograd.grad(outs[-1], dense, dout[:, :, i].double())
        totals = [x + part.to(device) for x, part in zip(totals, parts, strict=True)]
    pairs = [(out[:, :, chosen[rows]], torch.cat(outs, 2).to(device))]
    for result, total, (_, side) in zip(results, totals, sides, strict=True):
        dist.all_reduce(total)
        pairs.append((result, shard(total, rank, side=side)))
    worst = torch.stack([torch.dist(a.double(), b, torch.inf) for a, b in pairs]).detach()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return [x.item() for x in worst]


def main() -> None:
    """Compare with dense attention, under torchrun or `python FILE [--seq N]`, which calls it."""
    if "RANK" not in os.environ:
        launch = "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"
        os.execv(sys.executable, [sys.executable, *launch, *sys.argv])
    seq = int(sys.argv[2]) if sys.argv[1:2] == ["--seq"] else CHECKED
    if gpu := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, kind = dist.get_rank(), (torch.bfloat16, "cuda") if gpu else (torch.float64, "cpu")
    largest = errors(rank, seq, *kind)
    if rank == 0:
        print(f"{seq} tokens, largest errors of out, dq, dk, dv:", *(f"{x:.1e}" for x in largest))
    dist.destroy_process_group()
    limits = [5e-2] * 4 if gpu else [1e-12, 1e-11, 1e-11, 1e-11]
    assert all(x <= limit for x, limit in zip(largest, limits, strict=True)), "not exact"


if __name__ == "__main__":
    main()
