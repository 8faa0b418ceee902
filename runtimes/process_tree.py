"""Runs a program so that all its descendants end with it.

    with tree(["python", "file.py"]) as process:
        process.wait(60)

A keeper runs between this process and the program: this file as a script, in its own session. It
kills every descendant of the program when the program ends, when the block ends, and when this
process ends for any reason, because a pipe is then closed. On Linux, orphans become children of the
keeper, so it also kills processes in other sessions; elsewhere it kills the process group.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

ENDED = 1  # exit status of a program that was killed
SUBREAPER, PARENT_DEATH = 36, 1  # options of prctl
POLL = 0.02  # seconds
LINUX = sys.platform == "linux"


@contextlib.contextmanager
def tree(
    command: Sequence[str],
    *,
    memory: int = 0,
    pass_fds: Sequence[int] = (),
    streams: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a program whose tree of processes ends with the block; yields its keeper.

    The keeper ends with the program's exit status or signal. Each process of the tree may take
    `memory` bytes; 0 sets no limit. `streams`: stdout and stderr, as for `Popen`.
    """
    alive, own = os.pipe()
    keeper = [sys.executable, "-I", __file__, str(alive), str(memory), *command]
    try:
        process = subprocess.Popen(
            keeper,
            pass_fds=(alive, *pass_fds),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env=env,
            stdout=streams,
            stderr=streams,
        )
        os.close(alive)
        try:
            yield process
        finally:
            os.close(own)
            process.wait()
    finally:
        for number in (alive, own):
            with contextlib.suppress(OSError):
                os.close(number)


def limit_memory(size: int) -> None:
    """Limits the data bytes of this process, if the system supports it; 0 sets no limit."""
    if size:
        import resource  # not on Windows

        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        size = size if most == resource.RLIM_INFINITY else min(size, most)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


# ---- the keeper


def keep(alive: int, memory: int, command: Sequence[str]) -> int:
    """Runs a command until it ends, or until the other end of the pipe `alive` is closed.

    Returns its exit code as in `subprocess`: -9 if signal 9 ended it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.set_inheritable(alive, False)
    if LINUX:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    program = _started(memory, command)
    code = None
    try:
        while code is None and not select.select([alive], [], [], POLL)[0]:
            code = _reaped().get(program.pid)
    finally:
        _end_descendants(program.pid)
    return ENDED if code is None else code


def _started(memory: int, command: Sequence[str]) -> "subprocess.Popen[bytes]":
    def prepare() -> None:
        limit_memory(memory)
        if LINUX:
            ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)

    group = None if LINUX else 0  # outside Linux, a process group is what the keeper can kill
    return subprocess.Popen(command, close_fds=False, preexec_fn=prepare, process_group=group)


def _reaped() -> dict[int, int]:
    """Returns the exit codes of children that have ended since the last call, by process."""
    codes = dict[int, int]()
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def _end_descendants(program: int) -> None:
    """Kills all descendants of this process, and waits until none is left."""
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not LINUX:
                os.killpg(program, signal.SIGKILL)
        for pid in _descendants() if LINUX else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(POLL / 4)


def _descendants() -> list[int]:
    """Returns the descendants of this process according to /proc."""
    children = dict[int, list[int]]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    below, left = list[int](), [os.getpid()]
    while left:
        own = children.get(left.pop(), [])
        below += own
        left += own
    return below


if __name__ == "__main__":
    ended = keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    if ended < 0:
        if -ended not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
