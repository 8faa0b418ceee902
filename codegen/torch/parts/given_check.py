"""The self-check of a program with tables: the given ones, or an example."""

import argparse
import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.given import Tables, example, load, positions, shard
from codegen.torch.parts.given_function import attention

RANKS = HEADS = KV_HEADS = HEAD_DIM = 1
PLAN: dict[str, Any] = {}

# ---- Self-check: every rank compares its own rows with dense attention in float64.


def allowed(i: Tensor, tables: Tables) -> Tensor:
    """Which queries may see which keys, by the mask in the tables."""
    i, j = i[:, None] + tables.kv_seq - tables.seq, torch.arange(tables.kv_seq)[None]
    seen = torch.zeros(len(i), tables.kv_seq, dtype=torch.bool)
    for i0, i1, j0, j1, low, high in tables.boxes:
        seen |= (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1) & (low <= j - i) & (j - i <= high)
    return seen


def errors(rank: int, tables: Tables, dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """The largest errors of out, dq, dk and dv on random inputs; above 16k tokens, of some rows."""
    random, seq, kv_seq = torch.Generator().manual_seed(0), tables.seq, tables.kv_seq
    shapes = (HEADS, seq), (KV_HEADS, kv_seq), (KV_HEADS, kv_seq), (HEADS, seq)
    q, k, v, dout = (torch.randn(1, *x, HEAD_DIM, generator=random).to(dtype) for x in shapes)
    chosen = torch.rand(seq, generator=random) < (512 / seq if seq > 2**14 else 1)
    dout *= chosen[:, None]
    sides = (q, "q"), (k, "kv"), (v, "kv")
    ours = [shard(x, rank, tables, 2, side).to(device).requires_grad_() for x, side in sides]
    out = attention(ours[0], ours[1], ours[2], tables)
    rows, outs = positions(rank, tables), list[Tensor]()
    if tables.both:
        out.backward(shard(dout, rank, tables).to(device))
    q, k, v = dense = [x.double().requires_grad_() for x in (q, k, v)]
    for i in rows[chosen[rows]].split(64):
        scores = q[:, :, i].unflatten(1, (KV_HEADS, -1)) @ k[:, :, None].mT * PLAN["scale"]
        weights = scores.masked_fill(~allowed(i, tables), -torch.inf).softmax(-1).nan_to_num(0.0)
        outs.append((weights @ v[:, :, None]).flatten(1, 2))
        outs[-1].backward(dout[:, :, i].double())
    pairs = [(out[:, :, chosen[rows]], torch.cat([out[:, :, :0].cpu(), *outs], 2).to(device))]
    for mine, whole, side in zip(ours, dense, ("q", "kv", "kv"), strict=True):
        total = torch.zeros_like(whole) if whole.grad is None else whole.grad
        dist.all_reduce(total := total.to(device))
        if tables.both:
            pairs.append((mine.grad, shard(total, rank, tables, 2, side)))
    worst = [(a.double() - b).abs().max() if a.numel() else b.new_zeros(()) for a, b in pairs]
    dist.all_reduce(found := torch.stack(worst).detach(), dist.ReduceOp.MAX)
    return [*map(float, found)]


def check(rank: int, tables: str, seq: int, meeting: str) -> None:
    """Check on one rank of a new default group; raises AssertionError if an error is too large."""
    gpu = meeting == "env://" and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend, given = "nccl" if gpu else "gloo", load(tables) if tables else example(seq)
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=RANKS)
    found = errors(rank, given, *((torch.bfloat16, "cuda") if gpu else (torch.float64,)))
    if rank == 0:
        print(f"{given.seq} tokens, largest errors of out, dq, dk, dv:", end=" ")
        print(*(f"{x:.1e}" for x in found))
    dist.destroy_process_group()
    limits = [5e-2] * 4 if gpu else [1e-12, 1e-11, 1e-11, 1e-11]
    assert all(x <= limit for x, limit in zip(found, limits, strict=False)), "not exact"


def main() -> None:
    """Compare with dense attention, under torchrun or in processes of its own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tables", default="", help="a file of tables; default: an example")
    parser.add_argument("--seq", type=int, default=64 * RANKS, help="tokens of the example")
    options = parser.parse_args()
    if "RANK" in os.environ:
        return check(int(os.environ["RANK"]), options.tables, options.seq, "env://")
    with tempfile.TemporaryDirectory() as folder:
        given = options.tables, options.seq, f"file://{folder}/ranks"
        torch.multiprocessing.spawn(check, given, RANKS)


if __name__ == "__main__":
    main()
