"""The machine that this process is on: its memory, and how its processes end."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

PARENT_DEATH = 1  # an option of prctl
NEEDED = "torch", "torch.distributed", "torch._dynamo"  # by ranks of torch; operators import it


class RankError(RuntimeError):
    """A rank failed or stalled; the text holds its traceback where there is one."""


def ended(code: int) -> str:
    """Describes the end of a process, from its exit code as Python gives it."""
    return f"signal {-code}: {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Holds Ctrl-C back until the end; processes that start inside never get it."""
    resource_tracker.ensure_running()  # which they need, and which lets Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(*imported: str) -> None:
    """Have the server that forks ranks, with torch and these; Ctrl-C goes to this process alone.

    There is one server per process: who starts it first says what it imports.
    """
    forkserver.set_forkserver_preload([*NEEDED, *imported])
    with holding_interrupts():
        forkserver.ensure_running()


def memory_bytes() -> float:
    """Returns the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def end_with_parent() -> None:
    """Has this process of `multiprocessing` killed as soon as the one that started it has ended.

    On Linux also where it is stopped: then the server ends, which forked it, and with it this one.
    Ctrl-C is left to that process, also where a server forked this one that `serve` did not start.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    server: Any = forkserver._forkserver
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        if held := server._forkserver_alive_fd:  # as long as it is open, the server lives
            os.close(held)
            server._forkserver_alive_fd = None

    def wait() -> None:
        if parent:
            parent.join()
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
