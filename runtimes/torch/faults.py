"""Describes failures of rank processes: the failed rank, and where the other ranks wait.

    watch(path)                          makes a rank write its call stack on a signal
    failure_error(ranks, folder)         returns an error that names a failed rank, or None
    timeout_error(ranks, folder, time)   returns an error that names the ranks still running

A rank answers the signal even while it waits for a message. The error shows the line of the emitted
program that each rank is executing.
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
from ringloom.runtimes.machine import RankError, describe_exit

STACK_SIGNAL = signal.SIGUSR1
ANSWER_TIME, POLL = 1.0, 0.02  # seconds that a rank has to answer, and between two polls
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
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=False)
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


def failure_error(ranks: Sequence[BaseProcess], folder: Path) -> Exception | None:
    """Returns an error that names a failed rank and where the others wait, or None."""
    codes = {n: process.exitcode for n, process in enumerate(ranks)}
    failed = [
        (rank, code)
        for rank, code in codes.items()
        if code is not None and (code or not parts_file(folder, rank).exists())
    ]
    silent = [(n, code) for n, code in failed if not error_file(folder, n).exists()]
    if not failed:
        return None
    if silent:  # the failures of other ranks may follow from the death of this rank
        rank, code = silent[0]
        if code == UNGUARDED:
            return RingloomError(GUARD)
        message = f"rank {rank} failed ({describe_exit(code)}) and left no traceback"
    else:
        first = min(folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime)
        rank = int(first.stem.partition("-")[2])
        message = f"rank {rank} failed:\n{first.read_text(encoding='utf-8').rstrip()}"
    others = [n for n in codes if n != rank]
    return RankError("\n".join([message, *locations(ranks, others, folder, message)]))


def timeout_error(ranks: Sequence[BaseProcess], folder: Path, seconds: float) -> RankError:
    """Returns an error that names the ranks that are still running, and where each rank waits."""
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    message = f"ranks {late} are not done after {seconds:g} s"
    return RankError("\n".join([message, *locations(ranks, late, folder, message)]))


def locations(
    ranks: Sequence[BaseProcess], numbers: Sequence[int], folder: Path, message: str
) -> Iterator[str]:
    """Yields a line for each of these ranks that has not succeeded: where it waits or failed.

    Skips ranks whose error `message` already contains.
    """
    for rank in numbers:
        with suppress(OSError):
            os.kill(ranks[rank].pid or 0, STACK_SIGNAL)
    end = time.monotonic() + ANSWER_TIME
    for rank in numbers:
        if is_stopped(ranks[rank].pid):
            yield f"rank {rank} is stopped by a signal"
            continue
        while ranks[rank].is_alive() and time.monotonic() < end:
            functions = {frame[2] for frame in FRAME.findall(text_of(stack_file(folder, rank)))}
            if functions & {*PASSES}:
                break
            time.sleep(POLL)  # the rank may be about to fail
        error = text_of(error_file(folder, rank)).rstrip()
        last_line = error.rpartition("\n")[2]
        if error and last_line in message:
            continue
        if location := location_of(error or text_of(stack_file(folder, rank))):
            reason = f" ({last_line.partition('. ')[0]})" if error else ""
            yield f"rank {rank} was in {location}{reason}"
        elif ranks[rank].is_alive():
            yield f"rank {rank} does not report its position"


def is_stopped(pid: int | None) -> bool:
    """Returns True if /proc lists a process as stopped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in STOPPED
    return False


def text_of(path: Path) -> str:
    """Returns the text of a file, or "" if it does not exist."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def location_of(stack: str) -> str:
    """Returns the line of the emitted program in a stack, or else of the innermost call."""
    frames = FRAME.findall(stack)
    if stack.startswith("Traceback"):
        frames.reverse()  # innermost first, as in faulthandler's stacks
    program = [frame for frame in frames if PROGRAM.fullmatch(Path(frame[0]).name)]
    passes = [frame for frame in program if frame[2] in PASSES]
    for path, line, function in (passes or program or frames)[:1]:
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
