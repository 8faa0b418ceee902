"""Watches rank processes, and reports where each rank waits.

A rank writes a note before and after each call. On a signal it also writes its call stack, as in
`ringloom.runtimes.torch.faults`.
"""

import linecache
import os
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from ringloom.runtimes.audit.report import KINDS, Fault
from ringloom.runtimes.machine import describe_exit
from ringloom.runtimes.torch.faults import (
    ANSWER_TIME,
    FRAME,
    POLL,
    STACK_SIGNAL,
    error_file,
    is_stopped,
    stack_file,
    text_of,
)

RAISED = "raised "
IMPORTING = "imports the function"
BACKWARD = "in the function, backward"
ARRIVED = "waits for the other ranks"
GRACE = 3.0  # seconds in which ranks must end after a rank raised an error
FOREIGN = sysconfig.get_paths()["stdlib"], str(Path(__file__).parents[1]), "<frozen"
PACKAGES = "site-packages"
WAIT_PATH = "distributed"  # part of the path of code that waits for other ranks


def note_file(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's note."""
    return folder / f"note-{rank}.txt"


class Notes:
    """A function that writes a rank's notes to its file."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = note_file(folder, rank)

    def __call__(self, text: str) -> None:
        """Replaces the note."""
        self.path.write_text(text, encoding="utf-8")


def notes_of(folder: Path, ranks: int) -> list[str]:
    """Returns the notes of all ranks."""
    return [text_of(note_file(folder, rank)) for rank in range(ranks)]


def hang_fault(workers: Sequence[BaseProcess], folder: Path, seconds: float) -> Fault:
    """Returns the fault of ranks without progress for `seconds`."""
    notes = notes_of(folder, len(workers))
    late = [n for n, note in enumerate(notes) if ARRIVED not in note and workers[n].is_alive()]
    late = late or [*range(len(workers))]
    lines = "\n".join(locations(workers, folder))
    late = [n for n in late if not is_waiting(folder, n)] or late
    subject = f"ranks {late}" if len(late) > 1 else f"rank {late[0]}"
    text = f"{subject} did not arrive within {seconds:g} s: {KINDS['hang']}\n{lines}"
    return Fault("hang", text, query_rank=late[0])


def crash_fault(workers: Sequence[BaseProcess], folder: Path) -> Fault | None:
    """Returns the fault of a rank that died or whose function raised an error, or None."""
    notes = notes_of(folder, len(workers))
    raised = [(n, note.partition(RAISED)[2]) for n, note in enumerate(notes) if RAISED in note]
    dead = [(n, w.exitcode) for n, w in enumerate(workers) if w.exitcode]
    silent = [(n, code) for n, code in dead if not error_file(folder, n).exists()]
    if silent:
        rank, code = silent[0]
        note = notes[rank].partition(":")[0]
        text = f"rank {rank} ended ({describe_exit(code or 0)}) {note}".rstrip()
    elif raised:
        rank, error = raised[0]
        text = f"rank {rank} raised {error}"
    else:
        return None
    lines = "\n".join(locations(workers, folder))
    pass_ = "backward" if BACKWARD in notes[rank] else "forward"
    return Fault("crash", f"{text}\n{lines}".rstrip(), pass_, query_rank=rank)


def locations(workers: Sequence[BaseProcess], folder: Path) -> list[str]:
    """Returns a line for each living rank, with its note and the line that it executes."""
    alive = [n for n, worker in enumerate(workers) if worker.is_alive()]
    before = {n: len(text_of(stack_file(folder, n))) for n in alive}
    for n in alive:
        with suppress(OSError):
            os.kill(workers[n].pid or 0, STACK_SIGNAL)
    end, lines = time.monotonic() + ANSWER_TIME, []
    for n in alive:
        note = text_of(note_file(folder, n))
        if is_stopped(workers[n].pid):
            lines.append(f"rank {n} is stopped by a signal")
            continue
        while len(text_of(stack_file(folder, n))) == before[n] and time.monotonic() < end:
            time.sleep(POLL)
        location = (
            ""
            if ARRIVED in note or RAISED in note
            else location_of(text_of(stack_file(folder, n))[before[n] :])
        )
        lines.append(f"rank {n}: {note or 'starts'}{location and f', at {location}'}")
    return lines


def is_waiting(folder: Path, rank: int) -> bool:
    """Returns True if a rank's last stack is inside a call that waits for other ranks."""
    frames = FRAME.findall(text_of(stack_file(folder, rank)))
    return any(WAIT_PATH in path for path, _, _ in frames[:3])


def location_of(stack: str) -> str:
    """Returns the innermost line of the audited code in a stack.

    If that line calls a library, the innermost function of the library follows in parentheses.
    """
    frames = FRAME.findall(stack)
    audited = [f for f in frames if not f[0].startswith(FOREIGN) and PACKAGES not in f[0]]
    if not frames:
        return ""
    path, line, function = (audited or frames)[0]
    text = linecache.getline(path, int(line)).strip()
    callee = "" if frames[0] == (path, line, function) else f" (in {frames[0][2]})"
    return f"line {line} of {Path(path).name}, {function}: {text}{callee}".rstrip(": ")
