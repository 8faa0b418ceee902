"""Launches an audit in gloo processes, or in one process with virtual devices; ends them always.

Ranks without progress for the timeout are killed; the report names the ranks that did not arrive
and where each of them was.
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
PROCESS = 1 << 28  # bytes of memory that a rank with torch takes
BEAT = 0.05  # seconds between two polls of the notes of ranks
SPARE = 60.0  # seconds by which ranks outwait the process that watches them


def launch(target: str, case: Case, backend: str = "torch", timeout: float = 60.0) -> Report:
    """Starts ranks and audits "module:function" or "file.py:function" on them.

    torch: one process per rank, exchanging over gloo; jax: one process with a virtual device per
    rank. `timeout`: seconds without progress after which ranks are killed. Never raises for faults
    of the function; raises RingloomError for an invalid target or backend.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)
    if backend not in BACKENDS:
        raise RingloomError(unknown("backend", backend, BACKENDS))
    if ":" not in target:
        raise RingloomError(f"the function is given as module:function, not {target!r}")
    ranks = case.ranks if backend == "torch" else 1
    if ranks * PROCESS > memory_bytes():
        raise RingloomError(f"{ranks} processes of torch take more memory than this machine has")
    serve("ringloom.runtimes.audit.running.on_torch", __name__)
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="ringloom-", ignore_cleanup_errors=True) as name:
        folder, body = Path(name), _torch_rank if backend == "torch" else _jax_rank
        given = folder, target, case, timeout
        workers: list[BaseProcess] = [
            context.Process(target=_worker, args=(body, *given, rank), daemon=True)
            for rank in range(ranks)
        ]
        try:
            for worker in workers:
                worker.start()
            return _watched(workers, folder, timeout)
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
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if at.filename.startswith("<") else f", at line {at.lineno} of {at.filename}"
        said = f"{type(error).__name__}: {error}{'' if isinstance(error, SyntaxError) else where}"
        raise RingloomError(f"cannot import {module}: {said}") from error
    function: Any = loaded
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise RingloomError(f"{module} has no function {name}")
    return function  # type: ignore[no-any-return]


# ---- the process that watches


def _watched(workers: Sequence[BaseProcess], folder: Path, timeout: float) -> Report:
    """Returns the report of rank 0, or a report of the fault that ended the ranks."""
    moved, notes, raised = time.monotonic(), [""], 0.0
    while True:
        if (kept := folder / "report.pickle").exists():
            report: Report = pickle.loads(kept.read_bytes())
            return report
        if failed := [n for n, w in enumerate(workers) if w.exitcode]:
            if any(workers[n].exitcode == UNGUARDED for n in failed):
                raise RingloomError(GUARD)
            if fault := watching.crash(workers, folder):
                return Report((fault,))
            text = text_of(error_file(folder, failed[0])).strip()
            return Report(could_not_run=text.rpartition("\n")[2].partition(": ")[2] or text)
        if not any(worker.is_alive() for worker in workers):
            return Report(could_not_run="all ranks ended, and left no report")
        now, latest = time.monotonic(), watching.notes_of(folder, len(workers))
        if latest != notes:
            moved, notes = now, latest
        if any(watching.RAISED in note for note in notes):
            raised = raised or now
            if now > raised + watching.GRACE and (fault := watching.crash(workers, folder)):
                return Report((fault,))
        if now > moved + timeout and (early := {"", watching.IMPORTS} & {*latest}):
            what = "importing" if watching.IMPORTS in early else "starting ranks"
            return Report(could_not_run=f"{what} took longer than {timeout:g} s, the timeout")
        if now > moved + timeout:
            return Report((watching.hang(workers, folder, timeout),))
        alive = [worker.sentinel for worker in workers if worker.is_alive()]
        multiprocessing.connection.wait(alive, timeout=BEAT)


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
    os.dup2(2, 1)  # keeps the function's output off stdout, where the report goes
    if not folder.exists():
        return
    note = watching.Notes(folder, rank)
    with watch(stack_file(folder, rank)):
        try:
            report = body(folder, target, case, timeout, rank, note)
            if rank == 0:
                place = folder / "report.part"
                place.write_bytes(pickle.dumps(report))
                place.rename(folder / "report.pickle")
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
    wait = timedelta(seconds=timeout + SPARE)
    meeting = f"file://{folder}/meeting-point"
    dist.init_process_group("gloo", meeting, wait, case.ranks, rank)
    note(watching.IMPORTS)
    attend = load_function(target)
    asker = Asker(attend, case, rank, dist.group.WORLD, timeout + SPARE, note)
    report: Report = lead(asker, examine)
    return report


def _jax_rank(
    folder: Path, target: str, case: Case, timeout: float, rank: int, note: watching.Notes
) -> Report:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from ringloom.runtimes.audit.examining import examine
    from ringloom.runtimes.audit.running.on_jax import Asker

    note(watching.IMPORTS)
    asker = Asker.on_devices(load_function(target), case, note)
    return examine(asker)
