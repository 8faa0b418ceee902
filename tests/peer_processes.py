"""Code that nobody here wrote, on ranks that are processes and meet over gloo."""

import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ringloom.runtimes.arrays import Array

Body = Callable[[int], dict[str, list[Any]]]  # rank -> tensors per case


def on_processes(body: Body, ranks: int, folder: Path) -> None:
    """Runs a body on every rank; the tensors of each case are kept in the folder."""
    context = multiprocessing.get_context("forkserver")
    one = partial(_one_rank, body, ranks, folder)
    workers = [context.Process(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        worker.kill()
    assert [worker.exitcode for worker in workers] == [0] * ranks


def _one_rank(body: Body, ranks: int, folder: Path, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = f"file://{folder}/meeting-point"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    for case, tensors in body(rank).items():
        np.savez(folder / f"{case}-{rank}.npz", *(tensor.numpy() for tensor in tensors))
    dist.barrier()
    dist.destroy_process_group()


def results(folder: Path, case: str, ranks: int, axis: int) -> list[Array]:
    """The tensors of a case, the ranks' shards one after the other."""
    files = [np.load(folder / f"{case}-{rank}.npz") for rank in range(ranks)]
    return [np.concatenate([file[name] for file in files], axis) for name in files[0].files]
