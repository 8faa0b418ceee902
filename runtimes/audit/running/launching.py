"""Runs an audit in gloo processes, or in one process with virtual devices.

Processes always end: if no rank makes progress within the timeout, they are killed, and the report
names the ranks that did not arrive and where each of them was.
"""

import faulthandler
import importlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ringloom.planner.errors import RingloomError, unknown
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.report import Report
from ringloom.runtimes.audit.running import watching
from ringloom.runtimes.machine import end_with_parent, memory_bytes, serve
from ringloom.runtimes.torch.faults import GUARD, UNGUARDED, error_file, stack_file, text_of, watch

BACKENDS = "torch", "jax"
RANK_BYTES = 1 << 28  # memory of a rank with torch
POLL = 0.05  # seconds between two polls of the notes of ranks
MARGIN = 60.0  # seconds by which ranks wait longer than the watching process


def launch(target: str, case: Case, backend: str = "torch", timeout: float = 60.0) -> Report:
    """Starts ranks and audits "module:function" or "file.py:function" on them.

    "torch" starts one gloo process per rank, "jax" one process with a virtual device per rank.
    `timeout`: seconds without progress after which ranks are killed. Never raises for faults of the
    function; raises RingloomError for an invalid target or backend.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)
    if backend not in BACKENDS:
        raise RingloomError(unknown("backend", backend, BACKENDS))
    if ":" not in target:
        raise RingloomError(f"the function must be module:function, not {target!r}")
    ranks = case.ranks if backend == "torch" else 1
    if ranks * RANK_BYTES > memory_bytes():
        raise RingloomError(f"{ranks} torch processes need more memory than this machine has")
    serve("ringloom.runtimes.audit.running.on_torch", __name__)
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="ringloom-", ignore_cleanup_errors=True) as name:
        folder, body = Path(name), _torch_rank if backend == "torch" else _jax_rank
        arguments = folder, target, case, timeout
        workers: list[BaseProcess] = [
            context.Process(target=_worker, args=(body, *arguments, rank), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for worker in workers:
                worker.start()
            return _watch_ranks(workers, folder, timeout)
        finally:
            for worker in workers:
                if worker.pid is not None:
                    worker.kill()
                    worker.join()


def load_function(target: str) -> Callable[..., Any]:
    """Imports a function by "module:function" or "file.py:function"; raises RingloomError."""
    module, _, name = target.rpartition(":")
    sys.path[:0] = [os.getcwd()]
    try:
        if module.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module).stem, module)
            if spec is None or spec.loader is None:
                raise RingloomError(f"cannot load {module}")
            loaded = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = loaded
            spec.loader.exec_module(loaded)
        else:
            loaded = importlib.import_module(module)
    except RingloomError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        has_line = not isinstance(error, SyntaxError) and not frame.filename.startswith("<")
        location = f", at line {frame.lineno} of {frame.filename}" if has_line else ""
        text = f"{type(error).__name__}: {error}{location}"
        raise RingloomError(f"cannot import {module}: {text}") from error
    function: Any = loaded
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise RingloomError(f"{module} has no function {name}")
    return function  # type: ignore[no-any-return]


# ---- the watching process


def _watch_ranks(workers: Sequence[BaseProcess], folder: Path, timeout: float) -> Report:
    """Returns the report of rank 0, or a report of the fault that ended the ranks."""
    progress_time, notes, error_time = time.monotonic(), [""], 0.0
    while True:
        if (file := folder / "report.pickle").exists():
            report: Report = pickle.loads(file.read_bytes())
            return report
        if failed := [n for n, w in enumerate(workers) if w.exitcode]:
            if any(workers[n].exitcode == UNGUARDED for n in failed):
                raise RingloomError(GUARD)
            if fault := watching.crash_fault(workers, folder):
                return Report((fault,))
            text = text_of(error_file(folder, failed[0])).strip()
            return Report(could_not_run=text.rpartition("\n")[2].partition(": ")[2] or text)
        if not any(worker.is_alive() for worker in workers):
            return Report(could_not_run="all ranks ended without a report")
        now, latest = time.monotonic(), watching.notes_of(folder, len(workers))
        if latest != notes:
            progress_time, notes = now, latest
        if any(watching.RAISED in note for note in notes):
            error_time = error_time or now
            if now > error_time + watching.GRACE and (
                fault := watching.crash_fault(workers, folder)
            ):
                return Report((fault,))
        is_late = now > progress_time + timeout
        if is_late and (early := {"", watching.IMPORTING} & {*latest}):
            action = "importing" if watching.IMPORTING in early else "starting ranks"
            return Report(could_not_run=f"{action} took longer than the timeout of {timeout:g} s")
        if is_late:
            return Report((watching.hang_fault(workers, folder, timeout),))
        alive = [worker.sentinel for worker in workers if worker.is_alive()]
        multiprocessing.connection.wait(alive, timeout=POLL)


# ---- a rank


def _worker(
    body: Callable[..., Report | None],
    folder: Path,
    target: str,
    case: Case,
    timeout: float,
    rank: int,
) -> None:
    """Runs one rank; writes errors outside the audited function to a file."""
    end_with_parent()
    os.dup2(2, 1)  # keeps the function's output off stdout, which is for the report
    if not folder.exists():
        return
    note = watching.Notes(folder, rank)
    with watch(stack_file(folder, rank)):
        try:
            report = body(folder, target, case, timeout, rank, note)
            if rank == 0:
                file = folder / "report.part"
                file.write_bytes(pickle.dumps(report))
                file.rename(folder / "report.pickle")
        except BaseException:
            error_file(folder, rank).write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(1)
    faulthandler.disable()
    os._exit(0)  # the function may have left waiting threads


def _torch_rank(
    folder: Path, target: str, case: Case, timeout: float, rank: int, note: watching.Notes
) -> Report:
    import torch
    import torch.distributed as dist

    from ringloom.runtimes.audit.examining import examine
    from ringloom.runtimes.audit.running.on_torch import Asker, lead

    torch.set_num_threads(max(1, torch.get_num_threads() // case.ranks))
    wait = timedelta(seconds=timeout + MARGIN)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", wait, case.ranks, rank)
    note(watching.IMPORTING)
    attend = load_function(target)
    asker = Asker(attend, case, rank, dist.group.WORLD, timeout + MARGIN, note)
    report: Report = lead(asker, examine)
    return report


def _jax_rank(
    folder: Path, target: str, case: Case, timeout: float, rank: int, note: watching.Notes
) -> Report:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from ringloom.runtimes.audit.examining import examine
    from ringloom.runtimes.audit.running.on_jax import Asker

    note(watching.IMPORTING)
    asker = Asker.on_devices(load_function(target), case, note)
    return examine(asker)
