"""The self-check of a program with tables: the given ones, or an example."""

import argparse
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed.run import main as torchrun

from codegen.torch.parts.tables.given import Tables, attention, example, load, positions, shard

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
    rules: dict[str, Any] = {"scale": PLAN["scale"], "enable_gqa": True}
    for i in rows[chosen[rows]].split(256):
        seen = allowed(i, tables)
        exact = torch.nn.functional.scaled_dot_product_attention(q[:, :, i], k, v, seen, **rules)
        outs.append(exact)
        outs[-1].backward(dout[:, :, i].double())
    pairs = [(out[:, :, chosen[rows]], torch.cat([out[:, :, :0].cpu(), *outs], 2).to(device))]
    for part, whole, side in zip(ours, dense, ("q", "kv", "kv"), strict=True):
        total = torch.zeros_like(whole) if whole.grad is None else whole.grad
        dist.all_reduce(total := total.to(device))
        if tables.both:
            pairs.append((part.grad, shard(total, rank, tables, 2, side)))
    worst = [(a.double() - b).abs().max() if a.numel() else b.new_zeros(()) for a, b in pairs]
    dist.all_reduce(largest := torch.stack(worst).detach(), dist.ReduceOp.MAX)
    return [*map(float, largest)]


def main() -> None:
    """Compare with dense attention, under torchrun or by `python FILE`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tables", default="", help="a file of tables; default: an example")
    parser.add_argument("--seq", type=int, default=64 * RANKS, help="tokens of the example")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit(torchrun(["--standalone", f"--nproc-per-node={RANKS}", *sys.argv]))
    if gpu := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # torch.distributed.nn, imported later, would keep the group for good
    given = load(options.tables) if options.tables else example(options.seq)
    kind = (torch.bfloat16, "cuda") if gpu else (torch.float64, "cpu")
    largest = errors(dist.get_rank(), given, *kind)
    if dist.get_rank() == 0:
        print(f"{given.seq} tokens, largest errors of out, dq, dk, dv:", end=" ")
        print(*(f"{x:.1e}" for x in largest))
    dist.destroy_process_group()
    assert all(x <= (5e-2 if gpu else 1e-11) for x in largest), "not exact"


if __name__ == "__main__":
    main()
