"""The decoder layer by its definition, and the self-check of a program that has one."""

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.layer import Params, init, leaf, names, reference_layer
from codegen.torch.parts.layer_here import decoder_layer

RANKS = CHECKED = 1
PLAN: dict[str, Any] = {}


def positions(rank: int, seq: int) -> Tensor:
    raise NotImplementedError


def allowed(i: Tensor, j: Tensor) -> Tensor:
    raise NotImplementedError


# ---- Self-check: every rank compares its tokens with the layer on one device, in float64.


def reference(params: Params, x: Tensor) -> Tensor:
    """The layer by its definition on one device; x: all tokens in sequence order."""
    return reference_layer(params, x, dense)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by its definition, some rows at a time."""
    at, outs = torch.arange(k.shape[2], device=q.device), list[Tensor]()
    for i in at.split(512):
        scores = q[:, :, i].unflatten(1, (k.shape[1], -1)) @ k[:, :, None].mT * PLAN["scale"]
        scores = scores.masked_fill(~allowed(i[:, None], at[None]), -torch.inf)
        outs.append((scores.softmax(-1).nan_to_num(0.0) @ v[:, :, None]).flatten(1, 2))
    return torch.cat(outs, 2)


def errors(rank: int, seq: int, dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """The largest errors of the output, of dx and of the gradients of the parameters."""
    random, params = torch.Generator().manual_seed(0), init(0, dtype, device, dim=64, hidden=96)
    x, dy = (torch.randn(1, seq, 64, generator=random).to(device, dtype) for _ in range(2))
    at = positions(rank, seq).to(device)
    ours, exact = leaf(x[:, at]), {name: leaf(params[name].double()) for name in names}
    y, whole = decoder_layer(params, ours), leaf(x.double())
    y.backward(dy[:, at])
    wanted = reference(exact, whole)
    wanted.backward(dy.double())
    pairs = [(y, wanted[:, at]), (ours.grad, whole.grad[:, at])]
    for name in names:
        dist.all_reduce(total := params[name].grad.double())
        unit = exact[name].grad.abs().max().clamp_min(1)
        pairs.append((total / unit, exact[name].grad / unit))
    worst = torch.stack([torch.dist(a.double(), b, torch.inf) for a, b in pairs]).detach()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return [*map(float, worst)]


def check(rank: int, seq: int, meeting: str) -> None:
    """Check on one rank of a new default group; raises AssertionError if an error is too large."""
    gpu = meeting == "env://" and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=RANKS)
    found = errors(rank, seq, *((torch.bfloat16, "cuda") if gpu else (torch.float64,)))
    if rank == 0:
        print(f"{seq} tokens, largest errors of y, dx and parameters:", end=" ")
        print(*(f"{x:.1e}" for x in found))
    dist.destroy_process_group()
    assert all(x <= (5e-2 if gpu else 1e-11) for x in found), "not exact"


def main() -> None:
    """Compare with the reference, under torchrun or in processes of its own: [--seq N]."""
    seq = int(sys.argv[2]) if sys.argv[1:2] == ["--seq"] else CHECKED
    if "RANK" in os.environ:
        return check(int(os.environ["RANK"]), seq, "env://")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(check, (seq, f"file://{folder}/ranks"), RANKS)


if __name__ == "__main__":
    main()
