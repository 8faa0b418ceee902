"""The check that a file has of itself: a second opinion, which nothing rests on."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ringloom.planner.errors import shown
from ringloom.runtimes.process_tree import tree

KEPT = 4000  # characters of a program's last words that are kept
READ = 1 << 20  # bytes of a program's output that are read
# The last line of a traceback, also of one of several ranks, but not of who started these.
ERROR = re.compile(r"(?:\[rank\d+\]: )?((?!.*ChildFailed)[A-Za-z][\w.]*(?:Error|Exception)\b.*)")


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The end of a file's own check: its exit status, None where time was over, and its words."""

    status: int | None
    output: str = ""
    errors: str = ""

    @property
    def passed(self) -> bool | None:
        """True for the exit status 0; None where there is none."""
        return None if self.status is None else self.status == 0

    @property
    def words(self) -> str:
        """Its last words on stdout, and where it fails those on stderr."""
        return (self.output + ("" if self.passed else self.errors)).strip()[-KEPT:]

    @property
    def summary(self) -> str:
        """The same with no more of stderr than the errors that were raised."""
        said = "" if self.passed else first_errors(self.errors)
        return (self.output + said).strip()[-KEPT:]


def self_check(file: str, seq: int | None, memory: int, seconds: float) -> SelfCheck:
    """Runs a file as its header says, for at most `seconds`; nothing of it runs afterwards."""
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
    """Reads a stream to its end; returns the last bytes as a text that a terminal may show."""
    kept = b""
    with stream:
        while more := os.read(stream.fileno(), READ):
            kept = (kept + more)[-READ:]
    return shown(kept.decode(errors="replace"))


def first_errors(words: str) -> str:
    """Returns the line of each error that a program raised, once; its words where there is none."""
    errors = [line[1] for line in map(ERROR.match, words.splitlines()) if line]
    return "\n".join(dict.fromkeys(errors)) or words
