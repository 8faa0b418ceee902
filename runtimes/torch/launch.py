"""The torch backend: runs a plan's emitted program on ranks; numpy arrays in, numpy arrays out.

in_processes   starts one process per rank on this machine with a forkserver; ranks use gloo and a
               file for rendezvous. If a rank fails or stalls, all ranks are killed, and the error
               describes the failure and where the other ranks waited
in_group       uses the ranks of the initialised process group, as under torchrun
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
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

from ringloom.planner.errors import RingloomError
from ringloom.planner.plans import Plans
from ringloom.runtimes.arrays import Array, dtype_of, load_arrays, save_arrays
from ringloom.runtimes.emitted import RESULTS, load, source_of
from ringloom.runtimes.machine import (
    end_with_parent,
    memory_bytes,
    serve,
)
from ringloom.runtimes.torch.faults import (
    UNGUARDED,
    error_file,
    failure_error,
    parts_file,
    refuse_nan,
    stack_file,
    timeout_error,
    watch,
)
from ringloom.runtimes.torch.rank import ENTRY_POINTS, Body, Parts, to_numpy, to_torch

Launch = Callable[[str, int, tuple[Array, ...], Body, float], list[Parts]]
TIMEOUT = 300.0  # seconds
MARGIN = 60.0  # seconds by which ranks wait longer than the parent, whose error is more precise
RANK_BYTES = 1 << 28  # memory of a rank with torch


def execute(
    plans: Plans,
    function: str,
    *arrays: Array,
    sinks: Array | None = None,
    launch: Launch | None = None,
    timeout: float = TIMEOUT,
) -> list[Array]:
    """Runs plans on the backend `torch`, see `ringloom.runtimes.backends`.

    `launch` runs the ranks; by default it uses the initialised process group, or else starts
    processes. Raises RankError, which names the rank, if a rank fails, returns NaN, or is still
    running after `timeout` seconds.
    """
    body = partial(ENTRY_POINTS[function], sinks=sinks)
    program, parts = launch_plans(plans, arrays, body, launch, timeout)
    refuse_nan(arrays, parts)
    return unshard(program, function, parts)


def launch_plans(
    plans: Plans,
    arrays: tuple[Array, ...],
    body: Body,
    launch: Launch | None,
    timeout: float,
    suffix: str = "",
) -> tuple[ModuleType, list[Parts]]:
    """Returns the program of plans, with `suffix` added, and the results of `body` per rank."""
    source = source_of(plans, "torch") + suffix
    launch = launch or (in_group if dist.is_initialized() else in_processes)
    return load(source), launch(source, plans.ranks, arrays, body, timeout)


def unshard(program: ModuleType, function: str, parts: list[Parts]) -> list[Array]:
    """Returns results in sequence order from the shards of all ranks; sums dsinks over ranks."""
    results, sides = [*zip(*parts, strict=True)], RESULTS[function]
    pairs = zip(results, sides, strict=False)  # without dout, out is the only result
    tokens = [to_numpy(program.unshard(map(to_torch, xs), side=side)) for xs, side in pairs]
    return [*tokens, *(sum(xs).astype(tokens[0].dtype) for xs in results[len(sides) :])]


def in_group(
    source: str, ranks: int, arrays: tuple[Array, ...], body: Body, timeout: float
) -> list[Parts]:
    """Runs the rank of this process; all ranks pass the same arrays and receive all results."""
    if dist.get_world_size() != ranks:
        raise RingloomError(
            f"the plan is for {ranks} ranks, but the group has {dist.get_world_size()}"
        )
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, body(load(source), dist.group.WORLD, arrays))
    return parts


# ---- ranks as processes


def in_processes(
    source: str, ranks: int, arrays: tuple[Array, ...], body: Body, timeout: float
) -> list[Parts]:
    """Returns the results of `body` on every rank; each rank is a process, which uses gloo.

    Raises RingloomError if this machine has too little memory for the ranks, and if the main module
    starts ranks when a rank imports it.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # in a starting rank
        os._exit(UNGUARDED)
    if ranks * RANK_BYTES > (memory := memory_bytes()):
        needed, available = (f"{x / 2**30:.3g} GiB" for x in (ranks * RANK_BYTES, memory))
        raise RingloomError(
            f"{ranks} torch processes need {needed}, but this machine has {available}: use the"
            " numpy backend, which runs any number of ranks in one process"
        )
    serve(__name__)
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="ringloom-") as folder:
        for number, array in enumerate(arrays):
            np.save(Path(folder, f"input-{number}.npy"), array)
        names = [array.dtype.name for array in arrays]
        arguments = folder, source, ranks, names, time.monotonic() + timeout, body
        workers: list[BaseProcess] = [
            context.Process(target=_worker, args=(*arguments, rank), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for worker in workers:
                worker.start()
            _wait(workers, Path(folder), timeout)
        finally:
            _stop(workers)
        return [load_arrays(parts_file(Path(folder), rank)) for rank in range(ranks)]


def _worker(
    folder: str, source: str, ranks: int, names: list[str], deadline: float, body: Body, rank: int
) -> None:
    """Runs one rank; writes errors to one file, and its call stack on a signal to another."""
    end_with_parent()
    if not Path(folder).exists():  # the run ended before the server was ready
        return
    timeout = max(0.1, deadline - time.monotonic())
    with watch(stack_file(Path(folder), rank)):
        try:
            _run_rank(Path(folder), source, rank, ranks, names, timeout, body)
        except BaseException:
            error_file(Path(folder), rank).write_text(traceback.format_exc(), encoding="utf-8")
            sys.exit(1)  # the parent process raises the error


def _run_rank(
    folder: Path, source: str, rank: int, ranks: int, names: list[str], timeout: float, body: Body
) -> None:
    """Joins the process group, runs the program and saves its results in the folder."""
    torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout + MARGIN),
    )
    arrays = [  # numpy has no bfloat16: it loads such arrays as two bytes per element
        np.load(folder / f"input-{number}.npy", mmap_mode="c").view(dtype_of(name))
        for number, name in enumerate(names)
    ]
    parts = body(load(source, folder), dist.group.WORLD, arrays)
    save_arrays(parts_file(folder, rank), parts)
    dist.barrier()
    dist.destroy_process_group()


def _wait(workers: list[BaseProcess], folder: Path, timeout: float) -> None:
    """Waits for every rank; raises an error when a rank fails or the time is up."""
    end = time.monotonic() + timeout
    while alive := [worker for worker in workers if worker.is_alive()]:
        if (remaining := end - time.monotonic()) <= 0:
            raise timeout_error(workers, folder, timeout)
        multiprocessing.connection.wait([worker.sentinel for worker in alive], timeout=remaining)
        _raise_failure(workers, folder)
    _raise_failure(workers, folder)


def _raise_failure(workers: list[BaseProcess], folder: Path) -> None:
    if error := failure_error(workers, folder):
        raise error


def _stop(workers: list[BaseProcess]) -> None:
    """Kills and joins the processes that were started."""
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.kill()
    for worker in started:
        worker.join()
