"""The error of a failed rank, and the end of its process in words."""

from signal import strsignal


class RankError(RuntimeError):
    """A rank failed or stalled; the text holds its traceback where there is one."""


def ended(code: int) -> str:
    """Describes the end of a process, from its exit code as Python gives it."""
    return f"signal {-code}: {strsignal(-code)}" if code < 0 else f"exit code {code}"
