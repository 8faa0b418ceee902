"""Starts and ends processes on this machine, and reads its memory size."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

PARENT_DEATH = 1  # an option of prctl
PRELOADED = "torch", "torch.distributed", "torch._dynamo"  # modules that torch ranks import


class RankError(RuntimeError):
    """A rank failed or stalled; the message includes its traceback if there is one."""


def describe_exit(code: int) -> str:
    """Describes how a process ended, by its exit code as in `subprocess`."""
    return f"signal {-code}: {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"


def child_environment() -> dict[str, str]:
    """Returns environment variables with which child processes import this ringloom."""
    folders = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Delays Ctrl-C until the block ends; processes that start in the block never receive it."""
    resource_tracker.ensure_running()  # starting it later would unblock Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(*imported: str) -> None:
    """Starts the server that forks ranks, with torch and these modules imported.

    Only this process receives Ctrl-C. There is one server per process: the first call determines
    the modules that the server imports.
    """
    forkserver.set_forkserver_preload([*PRELOADED, *imported])
    with holding_interrupts():
        forkserver.ensure_running()


def memory_bytes() -> float:
    """Returns the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def end_with_parent() -> None:
    """Makes this `multiprocessing` process die as soon as its parent ends; ignores Ctrl-C.

    On Linux this process dies even while it is stopped by a signal: the server that forked it ends
    with the parent, and the kernel then kills it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    server: Any = forkserver._forkserver
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        if descriptor := server._forkserver_alive_fd:  # the server lives until all copies close
            os.close(descriptor)
            server._forkserver_alive_fd = None

    def wait() -> None:
        if parent:
            parent.join()
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
