"""Runs the check that a file contains: a second opinion that does not affect the verdict."""

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

KEPT = 4000  # characters of a program's last output to keep
READ = 1 << 20  # bytes of a program's output to read at once
# The last line of a traceback, also with a rank's prefix, but not the launcher's own error.
ERROR = re.compile(r"(?:\[rank\d+\]: )?((?!.*ChildFailed)[A-Za-z][\w.]*(?:Error|Exception)\b.*)")


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The result of a file's own check: its exit status, None if it was late, and its output."""

    status: int | None
    output: str = ""
    errors: str = ""

    @property
    def passed(self) -> bool | None:
        """True for exit status 0; None if there is no exit status."""
        return None if self.status is None else self.status == 0

    @property
    def words(self) -> str:
        """The end of stdout, and of stderr if the check failed."""
        return (self.output + ("" if self.passed else self.errors)).strip()[-KEPT:]

    @property
    def summary(self) -> str:
        """The end of stdout, and the errors from stderr if the check failed."""
        said = "" if self.passed else first_errors(self.errors)
        return (self.output + said).strip()[-KEPT:]


def self_check(file: str, seq: int | None, memory: int, seconds: float) -> SelfCheck:
    """Runs a file's own check for at most `seconds`; none of its processes survives."""
    path = str(Path(file).absolute())  # also where the name begins as options of Python do
    command = [sys.executable, path, *([] if seq is None else ["--seq", str(seq)])]
    begun = tree(command, memory=memory, streams=subprocess.PIPE)
    with ThreadPoolExecutor(2) as pool, begun as process:
        pipes = filter(None, (process.stdout, process.stderr))
        texts = [pool.submit(last, pipe) for pipe in pipes]
        try:
            status = process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            status = None
    return SelfCheck(status, *(text.result() for text in texts))


def last(stream: IO[bytes]) -> str:
    """Reads a stream to its end; returns the last bytes as text that is safe for a terminal."""
    kept = b""
    with stream:
        while more := os.read(stream.fileno(), READ):
            kept = (kept + more)[-READ:]
    return safe_text(kept.decode(errors="replace"))


def first_errors(words: str) -> str:
    """Returns the lines of distinct errors in a program's output, or all of it without errors."""
    errors = [line[1] for line in map(ERROR.match, words.splitlines()) if line]
    return "\n".join(dict.fromkeys(errors)) or words
