"""Torch programs and PyTorch's own ring template on two processes, each pinned to a core.

    with PinnedRanks({"ringloom": source}, seq) as ranks:
        ranks.time("ringloom", backward=True)     seconds on the wall, seconds of processors

All see the same head-tail shards of the same random inputs: one batch of HEADS x `seq` x HEAD_DIM
in float32. Every timing begins after a barrier and ends when the slower rank is done. The
conductor in the parent runs dense attention on both cores in turn with them.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._context_parallel._attention as template
from rounds import Times, timed

from ringloom.runtimes.emitted import load

RANKS = 2
HEADS, HEAD_DIM = 8, 64
TEMPLATES = {"template, all-gather": "ALL_GATHER", "template, all-to-all": "ALL_TO_ALL"}
DEFAULT = "template, all-gather"  # what PyTorch does unless told otherwise
OURS, BY_HAND, DENSE = "ringloom", "by hand", "dense, 2 threads"
SECONDS = 300  # after which a rank that says nothing is given up


def cores() -> list[int]:
    """The cores to pin to, or none where there are fewer than two or processes cannot be pinned."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores[:RANKS] if len(cores) >= RANKS else []


class PinnedRanks:
    """Two processes that run what they are told, in turn, and say how long it took."""

    def __init__(self, sources: dict[str, str], seq: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = list[Connection](), []
        for rank, core in enumerate(cores()):
            ours, theirs = context.Pipe()
            what = rank, core, self.folder.name, sources, seq, theirs
            process = context.Process(target=_rank, args=what, daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        self.dense = _Dense(seq)

    def __enter__(self) -> "PinnedRanks":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            process.kill()
        self.folder.cleanup()

    def time(self, name: str, backward: bool) -> Times:
        """Seconds of the slower rank on the wall, and of both processors together."""
        if name == DENSE:
            return timed(lambda: self.dense(backward))
        for pipe in self.pipes:
            pipe.send((name, backward))
        received = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(SECONDS):
                raise SystemExit(f"rank {rank} has said nothing of {name} for {SECONDS} s")
            received.append(pipe.recv())
        walls, cpus = zip(*received, strict=True)
        return max(walls), sum(cpus)


class _Dense:
    """PyTorch's own attention of the whole sequence, in this process, with two threads."""

    def __init__(self, seq: int) -> None:
        torch.set_num_threads(RANKS)
        made = [torch.randn(1, HEADS, seq, HEAD_DIM) for _ in range(4)]
        self.inputs, self.dout = [x.requires_grad_() for x in made[:3]], made[3]

    def __call__(self, backward: bool) -> None:
        attend = torch.nn.functional.scaled_dot_product_attention
        with torch.set_grad_enabled(backward):
            out = attend(*self.inputs, is_causal=True)
        if backward:
            torch.autograd.grad(out, self.inputs, self.dout)


# ---- in a rank


def _rank(
    rank: int, core: int, folder: str, sources: dict[str, str], seq: int, conductor: Connection
) -> None:
    """Answer every (name, backward) with the seconds it took, until the conductor hangs up."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    where = f"file://{Path(folder)}/meeting-point"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
    runs = _runs(rank, sources, seq)
    while True:
        try:
            name, backward = conductor.recv()
        except EOFError:
            break
        dist.barrier()
        conductor.send(timed(lambda: runs[name](backward)))  # noqa: B023  called at once
    os._exit(0)  # the other rank may have gone, and gloo would wait for it


def _runs(rank: int, sources: dict[str, str], seq: int) -> dict[str, Callable[[bool], object]]:
    """The programs by name, after all of them gave the same results."""
    programs = {name: fitted(load(source)) for name, source in sources.items()}
    random = torch.Generator().manual_seed(0)
    own = torch.as_tensor(next(iter(programs.values())).positions(rank, seq))
    q, k, v, dout = (
        torch.randn(1, HEADS, seq, HEAD_DIM, generator=random)[:, :, own] for _ in range(4)
    )

    def ours(program: ModuleType, backward: bool) -> list[Any]:
        inputs = [x.detach().requires_grad_(backward) for x in (q, k, v)]
        out = program.attention(*inputs)
        return [out, *(torch.autograd.grad(out, inputs, dout) if backward else ())]

    def theirs(method: str, backward: bool) -> list[Any]:
        template._cp_options.enable_load_balance = True
        template._cp_options.rotate_method = template._RotateMethod[method]
        group = dist.group.WORLD
        out, lse = template._templated_ring_attention(
            group, 2, _forward_op, q, k, v, is_causal=True
        )[:2]
        if not backward:
            return [out]
        grads = template._templated_ring_attention_backward(
            group, 2, _backward_op, dout, "grad_out", q, k, v, out, lse, True
        )
        return [out, *grads[:3]]

    runs: dict[str, Callable[[bool], Any]] = {
        name: partial(ours, program) for name, program in programs.items()
    }
    runs |= {name: partial(theirs, method) for name, method in TEMPLATES.items()}
    first, *rest = runs.values()
    for run in rest:
        for a, b in zip(first(True), run(True), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=5e-5)
    return runs


def fitted(program: ModuleType) -> ModuleType:
    """A program by hand for these ranks and heads: its constants are what it was written for."""
    vars(program).update(RANKS=RANKS, HEADS=HEADS, KV_HEADS=HEADS, HEAD_DIM=HEAD_DIM)
    vars(program)["SCALE"] = HEAD_DIM**-0.5
    return program


def _forward_op(query: Any, key: Any, value: Any, is_causal: bool, **_: Any) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return op(query, key, value, 0.0, is_causal)


def _backward_op(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool
) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return op(grad_out, query, key, value, out, logsumexp.contiguous(), 0.0, is_causal)
