"""The self-check of a program: compares every rank's results with dense attention in float64."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed.run import main as torchrun

from ringloom.codegen.torch.parts.stubs import compare_with_dense, example, load

RANKS = CHECKED = 1
DYNAMIC = ANY_LENGTH = True


def main(seq: Any = CHECKED) -> None:
    """Compare with dense attention on every rank; run by torchrun or `python FILE [--seq N]`."""
    if "RANK" not in os.environ:
        sys.exit(torchrun(["--standalone", f"--nproc-per-node={RANKS}", *sys.argv]))
    if gpu := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # if imported later, torch.distributed.nn would keep the group alive
    if DYNAMIC:
        # Or with `python FILE --tables PATH`.
        seq = example(seq) if isinstance(seq, int) else load(seq)
    pairs = compare_with_dense(seq, ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float64))
    errors = torch.stack([torch.dist(a.double(), b, torch.inf) for a, b in pairs]).detach()
    limits = limits_of(pairs)
    for values in (errors.nan_to_num_(torch.inf), limits):
        dist.all_reduce(values, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        if DYNAMIC:
            seq = seq.seq
        print(f"seq {seq}, largest errors:", *(f"{x:.1e}" for x in errors.tolist()))
    dist.destroy_process_group()
    if not (errors <= limits).all():
        raise AssertionError(f"not exact: errors must be at most {limits.tolist()}")


def limits_of(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the largest allowed errors: 1e-11 in float64, otherwise multiples of rounding error.

    pairs: output and gradients, each with that of dense attention in float64.
    """
    rounded = [torch.dist(b.to(a.dtype).double(), b, torch.inf).detach() for a, b in pairs]
    times = [4, *[40] * len(pairs[1:])]
    limits = [error * n for error, n in zip(rounded, times, strict=True)]
    exact = pairs[0][0].dtype == torch.float64
    return torch.stack(limits).fill_(1e-11) if exact else torch.stack(limits)


if __name__ == "__main__" and "__file__" in globals():  # not in a notebook
    parser = ArgumentParser(description=main.__doc__)
    if DYNAMIC:
        options = parser.add_mutually_exclusive_group()
        options.add_argument("--seq", type=int, default=CHECKED)
        options.add_argument("--tables", dest="seq")
    elif ANY_LENGTH:
        parser.add_argument("--seq", type=int, default=CHECKED)
    else:
        parser.add_argument("--seq", type=int, default=CHECKED, choices=[CHECKED])
    main(parser.parse_args().seq)
