"""The self-check of a program: what each rank computes beside dense attention in float64."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.distributed.run import main as torchrun

from codegen.torch.parts.stubs import compared, example, load

RANKS = CHECKED = 1


def main(seq: Any = CHECKED) -> None:
    """Compare with dense attention on every rank, under torchrun or by `python FILE [--seq N]`."""
    # Or by `python FILE --tables PATH`.  # given
    if "RANK" not in os.environ:
        sys.exit(torchrun(["--standalone", f"--nproc-per-node={RANKS}", *sys.argv]))
    if gpu := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # torch.distributed.nn, imported later, would keep the group for good
    seq = example(seq) if isinstance(seq, int) else load(seq)  # given
    pairs = compared(seq, ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float64))
    errors = torch.stack([torch.dist(a.double(), b, torch.inf) for a, b in pairs]).detach()
    dist.all_reduce(errors.nan_to_num_(torch.inf), dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        seq = seq.seq  # given
        print(f"seq {seq}, largest errors:", *(f"{x:.1e}" for x in errors.tolist()))
    dist.destroy_process_group()
    if not errors.max() < (5e-2 if gpu else 1e-11):
        raise AssertionError("not exact")


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    words = ArgumentParser(description=main.__doc__)
    words.add_argument("--seq", type=int, default=CHECKED)  # bound free
    words.add_argument("--seq", type=int, default=CHECKED, choices=[CHECKED])  # bound fixed
    either = words.add_mutually_exclusive_group()  # given
    either.add_argument("--seq", type=int, default=CHECKED)  # given
    either.add_argument("--tables", dest="seq")  # given
    main(words.parse_args().seq)
