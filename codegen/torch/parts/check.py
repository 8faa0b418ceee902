"""The self-check of a program: its own output and gradients beside dense attention in float64."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.function import attention

RANKS = SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = CHECKED = 1
SCALE = 1.0


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    raise NotImplementedError


def positions(rank: int, seq: int = SEQ) -> Tensor:
    raise NotImplementedError


def allowed(i: Tensor, j: Tensor) -> Tensor:
    raise NotImplementedError


# ---- Self-check: every rank compares its own rows with dense attention in float64.


def errors(rank: int, seq: int, dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """The largest errors of out, dq, dk and dv on random inputs; above 16k tokens, of some rows."""
    random, kv_seq = torch.Generator().manual_seed(0), seq + KV_SEQ - SEQ
    shapes = (HEADS, seq), (KV_HEADS, kv_seq), (KV_HEADS, kv_seq), (HEADS, seq)
    q, k, v, dout = (torch.randn(1, *x, HEAD_DIM, generator=random).to(dtype) for x in shapes)
    chosen = torch.rand(seq, generator=random) < (512 / seq if seq > 2**14 else 1)
    dout *= chosen[:, None]
    sides = (q, "q"), (k, "kv"), (v, "kv")
    ours = [shard(x, rank, side=side).to(device).requires_grad_() for x, side in sides]
    out = attention(*ours)
    out.backward(shard(dout, rank).to(device))
    rows, outs = positions(rank, seq), list[Tensor]()
    q, k, v = dense = [x.double().requires_grad_() for x in (q, k, v)]
    for i in rows[chosen[rows]].split(64):
        seen = allowed(i[:, None] + kv_seq - seq, torch.arange(kv_seq)[None])
        scores = q[:, :, i].unflatten(1, (KV_HEADS, -1)) @ k[:, :, None].mT * SCALE
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        outs.append((weights @ v[:, :, None]).flatten(1, 2))
        outs[-1].backward(dout[:, :, i].double())
    pairs = [(out[:, :, chosen[rows]], torch.cat(outs, 2).to(device))]
    for mine, whole, side in zip(ours, dense, ("q", "kv", "kv"), strict=True):
        total = whole.grad.to(device)
        dist.all_reduce(total)
        pairs.append((mine.grad, shard(total, rank, side=side)))
    worst = torch.stack([torch.dist(a.double(), b, torch.inf) for a, b in pairs]).detach()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.tolist()


def check(rank: int, seq: int, meeting: str) -> None:
    """Check on one rank of a new default group; raises AssertionError if an error is too large."""
    gpu = meeting == "env://" and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=RANKS)
    found = errors(rank, seq, *((torch.bfloat16, "cuda") if gpu else (torch.float64,)))
    if rank == 0:
        print(f"{seq} tokens, largest errors of out, dq, dk, dv:", *(f"{x:.1e}" for x in found))
    dist.destroy_process_group()
    limits = [5e-2] * 4 if gpu else [1e-12, 1e-11, 1e-11, 1e-11]
    assert all(x <= limit for x, limit in zip(found, limits, strict=True)), "not exact"


def main() -> None:
    """Compare with dense attention, under torchrun or in processes of its own: [--seq N]."""
    seq = int(sys.argv[2]) if sys.argv[1:2] == ["--seq"] else CHECKED
    if "RANK" in os.environ:
        return check(int(os.environ["RANK"]), seq, "env://")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(check, (seq, f"file://{folder}/ranks"), RANKS)


if __name__ == "__main__":
    main()
