"""judge(reader, number, seed)   makes one case, reads it, and says how that went."""

import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzz.readers import READERS
from ringloom.planner.errors import RingloomError

SECONDS = 2.0  # of processor time of a case
QUOTED = 200  # characters of a case that a message may repeat


class TooLong(BaseException):
    """A case has taken more than its time; not an Exception, which a reader might catch."""


@dataclass(frozen=True)
class Outcome:
    """A case by reader and number: accepted, refused, or `wrong` with what went wrong."""

    reader: str
    number: int
    accepted: bool
    seconds: float
    wrong: str = ""


def case(reader: str, number: int, seed: int) -> Any:
    """Returns the case of that number, the same each time."""
    return READERS[reader].make(Random(f"{seed} {reader} {number}"))


def judge(reader: str, number: int, seed: int, folder: Path) -> Outcome:
    """Reads a case in a folder of its own."""
    made, accepted, wrong, begun = case(reader, number, seed), False, "", time.process_time()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with limited(SECONDS):
            value = READERS[reader].read(made, folder)
            accepted = True
            READERS[reader].law(made, value)
    except RingloomError as error:
        wrong = f"accepted, then refused: {error}" if accepted else complaint(str(error), made)
    except (Exception, TooLong):
        wrong = traceback.format_exc()
    finally:
        os.chdir(before)
    return Outcome(reader, number, accepted, time.process_time() - begun, wrong)


def complaint(said: str, made: Any) -> str:
    """Returns what is wrong with a message, nothing if it is one plain line that quotes little."""
    if not said or not said.isprintable():
        return f"not one plain line: {said!r}"
    for text in texts(made):
        for at in range(0, len(text) - QUOTED, QUOTED // 4):
            if text[at : at + QUOTED + 1] in said:
                return f"more than {QUOTED} characters quoted: {said!r}"
    return ""


def texts(made: Any) -> list[str]:
    """The texts of a case in which a message might find something to quote."""
    if isinstance(made, tuple):
        return [made[1][:100_000].decode("utf-8", "replace")]
    return [made] if isinstance(made, str) else made


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooLong inside after so many seconds of processor time."""

    def stop(*_: object) -> None:
        raise TooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
