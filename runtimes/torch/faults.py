"""Describes failures of rank processes: the rank that failed, and where the others wait.

    watch(path)                    called in a rank: it writes its call stack on a signal
    failure(ranks, folder)         returns an error that names a failed rank, or None
    lateness(ranks, folder, time)  returns an error that names the ranks that are still running

A rank answers the signal even while it waits for a message. The error shows the line of the
emitted program that each rank is executing.
"""

import faulthandler
import linecache
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.machine import RankError, ended

ASK = signal.SIGUSR1
ANSWER, LOOK = 1.0, 0.02  # seconds that a rank has to answer, and between two polls
UNGUARDED = 78  # exit code of a rank whose main module starts ranks on import
FRAME = re.compile(r'^ *File "(.+)", line (\d+),? in (\S+)', re.MULTILINE)
PROGRAM = re.compile(r"(ringloom_program|emitted)_[0-9a-f]{16}\.py")
PASSES = "backward", "forward"
STOPPED = "Tt"  # states in /proc of processes stopped by a signal or a debugger
GUARD = (
    "this script starts ranks when it is imported, and each rank imports it:"
    ' move the code that starts them under `if __name__ == "__main__":`'
)


def watch(path: Path) -> Any:
    """Makes this process write its call stack to a file on a signal; returns the open file."""
    file = path.open("w", encoding="utf-8")
    faulthandler.register(ASK, file=file, all_threads=False)
    return file


def parts_file(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's results."""
    return folder / f"parts-{rank}.npz"


def error_file(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's traceback."""
    return folder / f"error-{rank}.txt"


def stack_file(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's call stack."""
    return folder / f"stack-{rank}.txt"


def failure(ranks: Sequence[BaseProcess], folder: Path) -> Exception | None:
    """Returns an error that names a failed rank and where the others wait; None if none failed."""
    codes = {n: process.exitcode for n, process in enumerate(ranks)}
    failed = [
        (rank, code)
        for rank, code in codes.items()
        if code is not None and (code or not parts_file(folder, rank).exists())
    ]
    silent = [(n, code) for n, code in failed if not error_file(folder, n).exists()]
    if not failed:
        return None
    if silent:  # a rank that just died broke the connections of the others
        rank, code = silent[0]
        if code == UNGUARDED:
            return RingloomError(GUARD)
        said = f"rank {rank} failed ({ended(code)}) and left no traceback"
    else:
        first = min(folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime)
        rank = int(first.stem.partition("-")[2])
        said = f"rank {rank} failed:\n{first.read_text(encoding='utf-8').rstrip()}"
    others = [n for n in codes if n != rank]
    return RankError("\n".join([said, *places(ranks, others, folder, said)]))


def lateness(ranks: Sequence[BaseProcess], folder: Path, seconds: float) -> RankError:
    """Returns an error that names the ranks that are still running, and where each waits."""
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    said = f"ranks {late} are not done after {seconds:g} s"
    return RankError("\n".join([said, *places(ranks, late, folder, said)]))


def places(
    ranks: Sequence[BaseProcess], asked: Sequence[int], folder: Path, said: str
) -> Iterator[str]:
    """Yields a line for each `asked` rank that has not succeeded: where it waits or failed.

    Skips ranks whose error `said` already contains.
    """
    for rank in asked:
        with suppress(OSError):
            os.kill(ranks[rank].pid or 0, ASK)
    end = time.monotonic() + ANSWER
    for rank in asked:
        if stopped(ranks[rank].pid):
            yield f"rank {rank} is stopped by a signal"
            continue
        while ranks[rank].is_alive() and time.monotonic() < end:
            functions = {frame[2] for frame in FRAME.findall(text_of(stack_file(folder, rank)))}
            if functions & {*PASSES}:
                break
            time.sleep(LOOK)  # the rank may be about to fail
        error = text_of(error_file(folder, rank)).rstrip()
        last = error.rpartition("\n")[2]
        if error and last in said:
            continue
        if place := place_of(error or text_of(stack_file(folder, rank))):
            why = f" ({last.partition('. ')[0]})" if error else ""
            yield f"rank {rank} was in {place}{why}"
        elif ranks[rank].is_alive():
            yield f"rank {rank} does not report its position"


def stopped(pid: int | None) -> bool:
    """Returns True if /proc lists a process as stopped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in STOPPED
    return False


def text_of(path: Path) -> str:
    """Returns the text of a file, "" if there is none."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def place_of(stack: str) -> str:
    """Returns the program line that a stack is in, or else that of the innermost call."""
    frames = FRAME.findall(stack)
    if stack.startswith("Traceback"):
        frames.reverse()  # innermost first, as in faulthandler's stacks
    own = [frame for frame in frames if PROGRAM.fullmatch(Path(frame[0]).name)]
    passes = [frame for frame in own if frame[2] in PASSES]
    for path, line, function in (passes or own or frames)[:1]:
        text = linecache.getline(path, int(line)).strip()
        return f"{function}, line {line} of {Path(path).name}: {text}".rstrip(": ")
    return ""


def refuse_nan(arrays: Sequence[Array], parts: Sequence[Sequence[Array]]) -> None:
    """Raises RankError if a rank returned NaN although no input has NaN or infinity."""
    if not all(np.isfinite(x).all() for x in arrays):
        return
    for rank, results in enumerate(parts):
        if wrong := [number for number, x in enumerate(results) if np.isnan(x).any()]:
            raise RankError(
                f"rank {rank} returned NaN in result {wrong[0]} of {len(results)}, although no"
                " input has NaN or infinity"
            )
