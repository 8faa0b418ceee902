"""The self-check of a program: its own output and gradients beside dense attention in float64."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.dense import dense
from codegen.torch.parts.function import attention

RANKS = SEQ = KV_SEQ = HEADS = KV_HEADS = HEAD_DIM = CHECKED = 1


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    raise NotImplementedError


def positions(rank: int, seq: int = SEQ) -> Tensor:
    raise NotImplementedError


def errors(group: ProcessGroup, seq: int, dtype: torch.dtype, device: str) -> list[float]:
    """The largest errors of out, dq, dk and dv on random inputs; above 16k tokens, of some rows."""
    rank, random = group.rank(), torch.Generator().manual_seed(0)
    q, k, v, dout = (
        torch.randn(1, heads, tokens, HEAD_DIM, generator=random, dtype=torch.float64).to(dtype)
        for heads, tokens in ((HEADS, seq), *[(KV_HEADS, seq + KV_SEQ - SEQ)] * 2, (HEADS, seq))
    )
    chosen = torch.rand(seq, generator=random) < (512 / seq if seq > 2**14 else 1)
    dout *= chosen[:, None]
    ours = [shard(x, rank, side=side).to(device) for x, side in ((q, "q"), (k, "kv"), (v, "kv"))]
    out = attention(*(x.requires_grad_() for x in ours), group=group)
    out.backward(shard(dout, rank).to(device))
    own = positions(rank, seq)
    here = chosen[own]
    results = [x[:, :, here] for x in (out, ours[0].grad)] + [x.grad for x in ours[1:]]
    exact = [x.to(device) for x in dense(*(x.double() for x in (q, k, v, dout)), own[here])]
    for x in exact[2:]:
        dist.all_reduce(x, group=group)
    exact[2:] = [shard(x, rank, side="kv") for x in exact[2:]]
    pairs = zip(results, exact, strict=True)
    largest = torch.stack([(a - b).abs().max() if len(here) else dout.sum() for a, b in pairs])
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return [x.item() for x in largest]


def judge(seq: int) -> None:
    """Check on this rank of the default group; raises AssertionError if an error is too large."""
    gpu = dist.get_backend() == "nccl"
    dtype, device = (torch.bfloat16, "cuda") if gpu else (torch.float64, "cpu")
    found = errors(dist.group.WORLD, seq, dtype, device)
    if dist.get_rank() == 0:
        print(f"{seq} tokens, largest errors:", *(f"{x:.1e}" for x in found))
    dist.destroy_process_group()
    limits = [5e-2] * 4 if gpu else [1e-12, 1e-11, 1e-11, 1e-11]
    assert all(a < b for a, b in zip(found, limits, strict=True)), "not exact"


def worker(rank: int, folder: str, seq: int) -> None:
    """One of the ranks that `main` starts."""
    torch.set_num_threads(max(1, torch.get_num_threads() // RANKS))
    store = f"file://{folder}/ranks"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    judge(seq)


def main() -> None:
    """Compare with dense attention, on the ranks of torchrun or on processes of its own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq", type=int, default=CHECKED, help=f"tokens, {CHECKED} if not given")
    seq = parser.parse_args().seq
    if "RANK" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(worker, (folder, seq), RANKS)
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    judge(seq)


if __name__ == "__main__":
    main()
