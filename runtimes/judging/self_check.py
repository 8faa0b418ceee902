"""Runs the check that a file contains, as a second opinion that does not affect the verdict."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ringloom.planner.errors import safe_text
from ringloom.runtimes.process_tree import tree

KEPT = 4000  # last characters of a program's output to keep
READ = 1 << 20  # bytes of a program's output to read at a time
# The last line of a traceback, possibly with a rank's prefix, but not the launcher's own error.
ERROR = re.compile(r"(?:\[rank\d+\]: )?((?!.*ChildFailed)[A-Za-z][\w.]*(?:Error|Exception)\b.*)")


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The exit status of a file's own check, or None if it was late, and its output."""

    status: int | None
    output: str = ""
    errors: str = ""

    @property
    def passed(self) -> bool | None:
        """True for exit status 0; None if there is no exit status."""
        return None if self.status is None else self.status == 0

    @property
    def text(self) -> str:
        """The end of stdout, and of stderr if the check failed."""
        return (self.output + ("" if self.passed else self.errors)).strip()[-KEPT:]

    @property
    def summary(self) -> str:
        """The end of stdout, and the errors from stderr if the check failed."""
        errors = "" if self.passed else first_errors(self.errors)
        return (self.output + errors).strip()[-KEPT:]


def self_check(file: str, seq: int | None, memory: int, seconds: float) -> SelfCheck:
    """Runs a file's own check for at most `seconds`; none of its processes survives."""
    path = str(Path(file).absolute())  # so that a name with a dash is not taken for an option
    command = [sys.executable, path, *([] if seq is None else ["--seq", str(seq)])]
    check = tree(command, memory=memory, streams=subprocess.PIPE)
    with ThreadPoolExecutor(2) as pool, check as process:
        pipes = filter(None, (process.stdout, process.stderr))
        texts = [pool.submit(read_end, pipe) for pipe in pipes]
        try:
            status = process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            status = None
    return SelfCheck(status, *(text.result() for text in texts))


def read_end(stream: IO[bytes]) -> str:
    """Reads a stream to its end; returns the last bytes as text that is safe for a terminal."""
    end = b""
    with stream:
        while data := os.read(stream.fileno(), READ):
            end = (end + data)[-READ:]
    return safe_text(end.decode(errors="replace"))


def first_errors(text: str) -> str:
    """Returns the distinct error lines of a program's output, or all of it if there are none."""
    errors = [line[1] for line in map(ERROR.match, text.splitlines()) if line]
    return "\n".join(dict.fromkeys(errors)) or text
