"""Programs that tests start, with every process that descends from them, in whatever session."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from repository import ROOT

LONG = 60.0  # seconds that a machine with much to do may take


@dataclass(frozen=True)
class Begun:
    """A program; its descendants inherit a mark in the environment."""

    process: subprocess.Popen[str]
    mark: str

    def tree(self) -> list[int]:
        """Returns the processes of the program that run."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._has(pid)]

    def _has(self, pid: int) -> bool:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state != "Z" and self.mark in Path(f"/proc/{pid}/environ").read_text()
        return False

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the program alone, and waits for its end."""
        self.process.send_signal(number)
        self.process.wait(LONG)


@contextmanager
def begun(command: Sequence[str]) -> Iterator[Begun]:
    """Starts a program in a session of its own, and leaves nothing of it; skips without /proc."""
    if sys.platform != "linux":
        pytest.skip("processes are counted in /proc")
    mark = f"RINGLOOM_TEST={uuid4()}"
    name, _, value = mark.partition("=")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        command, env=os.environ | {name: value, "PYTHONPATH": path}, start_new_session=True,
        **streams,
    )  # fmt: skip
    program = Begun(process, mark)
    try:
        yield program
    finally:
        for pid in program.tree():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def wait_for(done: Callable[[], object], seconds: float = LONG) -> None:
    """Waits until something holds; fails where it does not in time."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
