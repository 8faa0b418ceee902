"""The machine that this process is on: its memory, and how its processes end."""

import os
from signal import strsignal


class RankError(RuntimeError):
    """A rank failed or stalled; the text holds its traceback where there is one."""


def ended(code: int) -> str:
    """Describes the end of a process, from its exit code as Python gives it."""
    return f"signal {-code}: {strsignal(-code)}" if code < 0 else f"exit code {code}"


def memory_bytes() -> float:
    """Returns the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
