"""Runs a program so that all its descendants end with it.

    with tree(["python", "file.py"]) as process:
        process.wait(60)

A keeper process, which runs this file in its own session, starts the program. It kills all
descendants of the program when the program ends, when the block ends, and when this process ends
for any reason, because a pipe is then closed. On Linux, orphans become children of the keeper, so
it also kills processes in other sessions; on other systems it kills the process group.
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

KILLED = 1  # exit status of a program that was killed
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
    """Starts a program whose process tree ends with the block; yields its keeper.

    The keeper ends with the program's exit status or signal. Each process of the tree may allocate
    `memory` bytes; 0 sets no limit. `streams`: stdout and stderr, as for `Popen`.
    """
    read_end, write_end = os.pipe()
    keeper = [sys.executable, "-I", __file__, str(read_end), str(memory), *command]
    try:
        process = subprocess.Popen(
            keeper,
            pass_fds=(read_end, *pass_fds),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env=env,
            stdout=streams,
            stderr=streams,
        )
        os.close(read_end)
        try:
            yield process
        finally:
            os.close(write_end)
            process.wait()
    finally:
        for end in (read_end, write_end):
            with contextlib.suppress(OSError):
                os.close(end)


def limit_memory(size: int) -> None:
    """Limits the data segment of this process to `size` bytes; 0 sets no limit."""
    if size:
        import resource  # not on Windows

        hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
        size = size if hard_limit == resource.RLIM_INFINITY else min(size, hard_limit)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


# ---- the keeper


def keep(pipe: int, memory: int, command: Sequence[str]) -> int:
    """Runs a command until it ends, or until the write end of the pipe is closed.

    Returns the command's exit code as in `subprocess`: -9 if signal 9 ended it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.set_inheritable(pipe, False)
    if LINUX:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    program = _start(memory, command)
    code = None
    try:
        while code is None and not select.select([pipe], [], [], POLL)[0]:
            code = _reap().get(program.pid)
    finally:
        _kill_descendants(program.pid)
    return KILLED if code is None else code


def _start(memory: int, command: Sequence[str]) -> "subprocess.Popen[bytes]":
    def prepare() -> None:
        limit_memory(memory)
        if LINUX:
            ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)

    group = None if LINUX else 0  # outside Linux, the keeper can only kill a process group
    return subprocess.Popen(command, close_fds=False, preexec_fn=prepare, process_group=group)


def _reap() -> dict[int, int]:
    """Returns the exit codes, by process id, of children that have ended since the last call."""
    codes = dict[int, int]()
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            codes[child[0]] = os.waitstatus_to_exitcode(child[1])
    return codes


def _kill_descendants(program: int) -> None:
    """Kills all descendants of this process, and waits until they have ended."""
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
    descendants, parents = list[int](), [os.getpid()]
    while parents:
        own = children.get(parents.pop(), [])
        descendants += own
        parents += own
    return descendants


if __name__ == "__main__":
    code = keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
