"""The torch backend: a plan's emitted program on ranks, numpy arrays in, numpy arrays out.

in_processes   one process per rank on this machine, by forkserver and over gloo; they meet through
               a folder; a rank that fails or stalls ends the run: everybody is stopped, and its
               traceback is in the error
in_group       the ranks of the process group that is initialised already, as under torchrun
"""

import faulthandler
import multiprocessing
import multiprocessing.connection
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from planner.errors import RingloomError
from planner.plans import Plans
from runtimes.arrays import Array, dtype_of, load_arrays, save_arrays
from runtimes.emitted import RESULTS, load, source_of
from runtimes.machine import (
    RankError,
    end_with_parent,
    ended,
    memory_bytes,
    serve,
)
from runtimes.torch.rank import BODIES, Body, Parts, to_numpy, to_torch

Launch = Callable[[str, int, tuple[Array, ...], Body, float], list[Parts]]
TIMEOUT = 300.0  # seconds
PROCESS = 1 << 28  # bytes of memory that torch takes on a rank


def execute(
    plans: Plans,
    function: str,
    *arrays: Array,
    sinks: Array | None = None,
    launch: Launch | None = None,
    timeout: float = TIMEOUT,
) -> list[Array]:
    """Runs plans: the backend `torch`, see `runtimes.backends`.

    `launch` says where ranks live: by default in the process group that is initialised, else in
    processes. RankError when a rank fails or nothing is done after `timeout` seconds.
    """
    body = partial(BODIES[function], sinks=sinks)
    program, parts = launched(plans, arrays, body, launch, timeout)
    return wholes(program, function, parts)


def launched(
    plans: Plans, arrays: tuple[Array, ...], body: Body, launch: Launch | None, timeout: float
) -> tuple[ModuleType, list[Parts]]:
    """Returns the program of plans, and what `body` returns on every rank of it."""
    source = source_of(plans, "torch")
    launch = launch or (in_group if dist.is_initialized() else in_processes)
    return load(source), launch(source, plans.ranks, arrays, body, timeout)


def wholes(program: ModuleType, function: str, parts: list[Parts]) -> list[Array]:
    """Results in sequence order from the shards of all ranks; the sinks' gradient is a sum."""
    results, sides = [*zip(*parts, strict=True)], RESULTS[function]
    sided = zip(results, sides, strict=False)  # without dout, out is all there is
    tokens = [to_numpy(program.unshard(map(to_torch, xs), side=side)) for xs, side in sided]
    return [*tokens, *(sum(xs).astype(tokens[0].dtype) for xs in results[len(sides) :])]


def in_group(
    source: str, ranks: int, arrays: tuple[Array, ...], body: Body, timeout: float
) -> list[Parts]:
    """Runs the rank of this process; all have the same arrays and get the whole results."""
    if dist.get_world_size() != ranks:
        raise RingloomError(f"the plan is for {ranks} ranks, the group has {dist.get_world_size()}")
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, body(load(source), dist.group.WORLD, arrays))
    return parts


# ---- ranks as processes


def in_processes(
    source: str, ranks: int, arrays: tuple[Array, ...], body: Body, timeout: float
) -> list[Parts]:
    """Returns the results of `body` on every rank, one process each, exchanging over gloo.

    Raises RingloomError for more ranks than this machine has memory for.
    """
    if ranks * PROCESS > (memory := memory_bytes()):
        need, room = (f"{x / 2**30:.3g} GiB" for x in (ranks * PROCESS, memory))
        raise RingloomError(
            f"{ranks} processes of torch take {need}, this machine has {room}: the numpy backend "
            "runs any number of ranks in one"
        )
    serve("torch", "torch.distributed", __name__)
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="ringloom-") as folder:
        for number, array in enumerate(arrays):
            np.save(Path(folder, f"input-{number}.npy"), array)
        names = [array.dtype.name for array in arrays]
        what = folder, source, ranks, names, time.monotonic() + timeout, body
        workers: list[BaseProcess] = [
            context.Process(target=_worker, args=(*what, rank), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for worker in workers:
                worker.start()
            _wait(workers, Path(folder), timeout)
        finally:
            _stop(workers)
        return [load_arrays(_parts(Path(folder), rank)) for rank in range(ranks)]


def _worker(
    folder: str, source: str, ranks: int, names: list[str], deadline: float, body: Body, rank: int
) -> None:
    """One rank; an error goes to a file, and so does where it is shortly before the deadline."""
    end_with_parent()
    if not Path(folder).exists():  # the run ended while the server was still getting ready
        return
    timeout = max(0.1, deadline - time.monotonic())
    with Path(folder, f"stack-{rank}.txt").open("w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(0.8 * timeout, file=stack)
        try:
            _live(Path(folder), source, rank, ranks, names, timeout, body)
        except BaseException:
            Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()


def _live(
    folder: Path, source: str, rank: int, ranks: int, names: list[str], timeout: float, body: Body
) -> None:
    """Meet the others, run the program, leave the results in the folder."""
    torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-point",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )
    arrays = [  # bfloat16 is none of numpy's own: it comes back as two bytes
        np.load(folder / f"input-{number}.npy", mmap_mode="c").view(dtype_of(name))
        for number, name in enumerate(names)
    ]
    parts = body(load(source, folder), dist.group.WORLD, arrays)
    save_arrays(_parts(folder, rank), parts)
    dist.barrier()
    dist.destroy_process_group()


def _parts(folder: Path, rank: int) -> Path:
    return folder / f"parts-{rank}.npz"


def _wait(workers: list[BaseProcess], folder: Path, timeout: float) -> None:
    """Wait for every rank; RankError as soon as one of them fails, or when time is up."""
    end = time.monotonic() + timeout
    while alive := [worker for worker in workers if worker.is_alive()]:
        left = end - time.monotonic()
        if left <= 0:
            stalled = [rank for rank, worker in enumerate(workers) if worker.is_alive()]
            raise RankError(
                f"ranks {stalled} are not done after {timeout:g} s"
                + "".join(_stack(folder, rank) for rank in stalled)
            )
        multiprocessing.connection.wait([worker.sentinel for worker in alive], timeout=left)
        _raise_failure(workers, folder)
    _raise_failure(workers, folder)


def _stack(folder: Path, rank: int) -> str:
    """Returns the call stack of a stalled rank, "" if it left none."""
    file = folder / f"stack-{rank}.txt"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return f"\nrank {rank}, innermost call first:\n{text}" if text else ""


def _raise_failure(workers: list[BaseProcess], folder: Path) -> None:
    ended_ranks = [(n, w.exitcode) for n, w in enumerate(workers) if w.exitcode is not None]
    failed = [
        (rank, code) for rank, code in ended_ranks if code or not _parts(folder, rank).exists()
    ]
    if not failed:
        return
    for rank, code in failed:  # a rank that just died broke the connections of the others
        if not (folder / f"error-{rank}.txt").exists():
            raise RankError(f"rank {rank} failed ({ended(code)}) and left no traceback")
    first = min(folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime)
    rank = int(first.stem.partition("-")[2])
    raise RankError(f"rank {rank} failed:\n{first.read_text(encoding='utf-8')}")


def _stop(workers: list[BaseProcess]) -> None:
    """Leave no process behind."""
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.kill()
    for worker in started:
        worker.join()
