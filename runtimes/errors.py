"""What goes wrong on a rank, and how its process ended."""

from signal import strsignal


class RankError(RuntimeError):
    """A rank failed or stalled; the text holds its traceback where there is one."""


def ended(code: int) -> str:
    """How a process ended, by its exit code as Python has it."""
    return f"signal {-code}: {strsignal(-code)}" if code < 0 else f"exit code {code}"
