"""run(plan, q, k, v)   emit a plan's torch program and run it: numpy arrays in, numpy arrays out.

    processes   one process per rank on this machine, by forkserver and gloo (the default)
    threads     one thread per rank in this process, each with a gloo group of its own: for tests
    group       the ranks of the process group that is initialised already, as under torchrun

A rank that fails or stalls ends the run: everybody is stopped, and its traceback is in the error.
"""

import faulthandler
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from codegen import emit
from planner.errors import PlanError
from planner.ir import Plan
from planner.passes.adjoint import adjoint
from planner.workload import Workload
from runtimes.arrays import Array, check_arrays, dtype_of
from runtimes.backends import RankError, ended

Pair = tuple[Plan, Plan]
Parts = list[Array]  # a rank's shards of out, or of out, dq, dk, dv
Body = Callable[[ModuleType, Any, Sequence[Array]], Parts]  # what one rank does with a program
Vehicle = Callable[..., list[Parts]]
CONNECTS = 3  # how often threads try to connect


def run(
    plan: Plan | Pair,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    *,
    vehicle: str = "",
    timeout: float = 300.0,
) -> Array | tuple[Array, ...]:
    """Run a plan's torch program on arrays in sequence order: out, or with `dout` also dq, dk, dv.

    Arrays are [batch, heads, seq, head_dim] of the workload's dtype. A forward plan given with
    `dout` is followed by its adjoint. `vehicle` is "processes", "threads" or "group"; by default
    an initialised process group is used, else processes. Raises PlanError for arrays that do not
    fit, RankError when a rank fails or nothing is done after `timeout` seconds.
    """
    results = run_parts(plan, q, k, v, dout, vehicle, timeout, attend)[1]
    return results


def run_parts(
    plan: Plan | Pair,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None,
    vehicle: str,
    timeout: float,
    body: Body,
) -> tuple[Plan | Pair, Array | tuple[Array, ...], list[Parts]]:
    """Run a plan with `body` on every rank: the plan or pair that ran, what `run` returns, and all
    that the ranks returned, of which results come first. Arguments and errors as in `run`."""
    forward = plan[0] if isinstance(plan, tuple) else plan
    arrays = {"q": q, "k": k, "v": v} | ({} if dout is None else {"dout": dout})
    check_arrays(forward.workload, **arrays)
    if forward.pass_ != "forward":
        raise PlanError("the torch backend runs a forward plan, or a (forward, backward) pair")
    if dout is not None and isinstance(plan, Plan):
        plan = plan, adjoint(plan)
    if not vehicle:
        vehicle = "group" if dist.is_initialized() else "processes"
    if vehicle not in VEHICLES:
        raise PlanError(f"unknown vehicle {vehicle!r}: choose one of {', '.join(VEHICLES)}")
    source = emit(plan, "torch")
    parts = VEHICLES[vehicle](source, forward.ranks, list(arrays.values()), timeout, body=body)
    wanted = [shards[: 1 if dout is None else 4] for shards in parts]
    results = _assemble(source, forward.workload, forward.ranks, wanted)
    return plan, results[0] if dout is None else results, parts


def _assemble(source: str, work: Workload, ranks: int, parts: list[Parts]) -> tuple[Array, ...]:
    """Whole arrays in sequence order from the shards of all ranks."""
    program = load(source)
    where = [(program.positions(rank), program.kv_positions(rank)) for rank in range(ranks)]
    results = []
    for number, shards in enumerate(zip(*parts, strict=True)):
        keys = number >= 2  # out and dq are on the query side, dk and dv on the other
        shape = (
            work.batch,
            work.kv_heads if keys else work.heads,
            work.kv_seq if keys else work.seq,
            work.head_dim,
        )
        whole = np.empty(shape, dtype_of(work.dtype))
        for shard, positions in zip(shards, where, strict=True):
            whole[:, :, positions[keys]] = shard
        results.append(whole)
    return tuple(results)


def load(source: str) -> ModuleType:
    """An emitted program as a module of its own."""
    program = ModuleType("emitted")
    exec(compile(source, "<emitted torch program>", "exec"), program.__dict__)
    return program


def attend(program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """What one rank does: cut its shards, call the program, take gradients if dout is given."""
    positions = program.positions(group.rank()), program.kv_positions(group.rank())
    shards = [
        to_torch(array[:, :, positions[keys]])
        for array, keys in zip(arrays, (0, 1, 1, 0), strict=False)
    ]
    inputs = [x.requires_grad_(len(arrays) == 4) for x in shards[:3]]
    out = program.attention(*inputs, group=group)
    results = [out.detach()]
    if len(arrays) == 4:
        out.backward(shards[3])
        results += [x.grad for x in inputs]
    return [to_numpy(x) for x in results]


def to_torch(array: Array) -> Any:
    """A tensor of the same bits; numpy and torch have no bfloat16 in common."""
    array = np.ascontiguousarray(array)
    if array.dtype == dtype_of("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> Array:
    """An array of the same bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(dtype_of("bfloat16")))
    return np.asarray(tensor.numpy())


# ---- processes


def in_processes(
    source: str, ranks: int, arrays: list[Array], timeout: float, body: Body = attend
) -> list[Parts]:
    """One forkserver process per rank; they meet through a folder that is removed afterwards."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "runtimes.torch_ranks"])
    with tempfile.TemporaryDirectory(prefix="ringloom-") as folder:
        Path(folder, "program.py").write_text(source, encoding="utf-8")
        for number, array in enumerate(arrays):
            np.save(Path(folder, f"input-{number}.npy"), _plain(array))
        names = [array.dtype.name for array in arrays]
        what = folder, ranks, names, time.monotonic() + timeout, body
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
        return [_results(Path(folder), rank, names[0]) for rank in range(ranks)]


def _plain(array: Array) -> Array:
    """The array in a dtype that can be saved."""
    return array.view(np.int16) if array.dtype == dtype_of("bfloat16") else array


def _worker(
    folder: str, ranks: int, names: list[str], deadline: float, body: Body, rank: int
) -> None:
    """One rank; what it cannot do goes to a file, and so does where it is shortly before the
    deadline, for the parent to report."""
    timeout = max(0.1, deadline - time.monotonic())
    with Path(folder, f"stack-{rank}.txt").open("w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(0.8 * timeout, file=stack)
        try:
            _live(Path(folder), rank, ranks, names, timeout, body)
        except BaseException:
            Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()


def _live(
    folder: Path, rank: int, ranks: int, names: list[str], timeout: float, body: Body
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
    arrays = [
        np.load(folder / f"input-{number}.npy", mmap_mode="r").view(dtype_of(name))
        for number, name in enumerate(names)
    ]
    program = load((folder / "program.py").read_text(encoding="utf-8"))
    for number, part in enumerate(body(program, dist.group.WORLD, arrays)):
        np.save(folder / f"part-{rank}-{number}.npy", _plain(part))
    dist.barrier()
    dist.destroy_process_group()


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
    """Where a stalled rank was, as far as it could tell."""
    file = folder / f"stack-{rank}.txt"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return f"\nrank {rank}, innermost call first:\n{text}" if text else ""


def _raise_failure(workers: list[BaseProcess], folder: Path) -> None:
    failed = [(rank, worker.exitcode) for rank, worker in enumerate(workers) if worker.exitcode]
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
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
    for worker in workers:
        if worker.pid is not None:
            worker.join(5)
            if worker.is_alive():
                worker.kill()
                worker.join()


def _results(folder: Path, rank: int, name: str) -> Parts:
    paths = sorted(folder.glob(f"part-{rank}-*.npy"))
    found = [np.load(path) for path in paths]
    return [x.view(dtype_of(name)) if x.dtype == np.int16 else x for x in found]


# ---- threads


def in_threads(
    source: str,
    ranks: int,
    arrays: list[Array],
    timeout: float,
    prepare: Callable[[ModuleType], None] = lambda program: None,
    *,
    body: Body = attend,
) -> list[Parts]:
    """One thread per rank; `prepare` may change the program before anybody calls it."""
    program = load(source)
    program.exchange = exchange  # type: ignore[attr-defined]
    prepare(program)
    groups, parts = connected(ranks, timeout), [Parts()] * ranks
    errors = list[tuple[int, str]]()

    def live(rank: int) -> None:
        try:
            torch.set_num_threads(1)
            parts[rank] = body(program, groups[rank], arrays)
        except Exception:
            errors.append((rank, traceback.format_exc()))

    threads = [
        Thread(target=live, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    while any(thread.is_alive() for thread in threads) and not errors:
        next(thread for thread in threads if thread.is_alive()).join(0.05)
        if time.monotonic() > end:
            raise RankError(f"not done after {timeout:g} s" + "".join(map(_where, threads)))
    if errors:
        rank, text = errors[0]
        raise RankError(f"rank {rank} failed:\n{text}")
    return parts


def connected(ranks: int, timeout: float) -> list[Any]:
    """A gloo group for each thread; gloo loses a connection about once in a thousand times while
    it makes them, and is then asked again."""
    limit = timedelta(seconds=timeout)
    for _ in range(CONNECTS):
        join = partial(dist.ProcessGroupGloo, dist.HashStore(), size=ranks, timeout=limit)
        with ThreadPoolExecutor(ranks) as pool:
            made = list(map(partial(pool.submit, join), range(ranks)))
        failed = {rank: error for rank, one in enumerate(made) if (error := one.exception())}
        if not failed:
            return [one.result() for one in made]
    rank, error = next(iter(failed.items()))
    raise RankError(f"rank {rank} failed to connect, {CONNECTS} times:\n{error}")


def _where(thread: Thread) -> str:
    """Where a stalled rank is."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    return f"\n{thread.name}:\n" + "".join(traceback.format_stack(frame))


def exchange(
    sends: list[tuple[list[Any], int]], receives: list[tuple[list[Any], int]], group: Any
) -> list[Any]:
    """What an emitted program's `exchange` does, for a group that torch does not know of."""
    works = [group.send([array], peer, 0) for message, peer in sends for array in message]
    return works + [group.recv([array], peer, 0) for message, peer in receives for array in message]


# ---- an existing group


def in_group(
    source: str, ranks: int, arrays: list[Array], timeout: float, *, body: Body = attend
) -> list[Parts]:
    """Every rank of the world has the same arrays and gets the whole results."""
    if dist.get_world_size() != ranks:
        raise PlanError(f"the plan is for {ranks} ranks, the group has {dist.get_world_size()}")
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, body(load(source), dist.group.WORLD, arrays))
    return parts


VEHICLES: dict[str, Vehicle] = {
    "processes": in_processes,
    "threads": in_threads,
    "group": in_group,
}
