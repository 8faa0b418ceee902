"""Formats lengths, durations, sizes, ratios and block numbers, and wraps names of schedules."""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

Entry = TypeVar("Entry")
SHOWN = 12  # entries of a list; longer lists are cut
NAME, NARROW = 26, 19  # characters of a schedule's name, and in a table with one more column


def both_ends(entries: list[Entry], between: Entry) -> list[Entry]:
    """Returns a list, or the first and last entries of a long one with `between` in the middle."""
    if len(entries) <= SHOWN:
        return entries
    return [*entries[: SHOWN // 2], between, *entries[-SHOWN // 2 :]]


def length(tokens: int) -> str:
    """Formats a number of tokens: 256k, 1M, 203."""
    for unit, scale in (("M", 1 << 20), ("k", 1 << 10)):
        if tokens >= scale and tokens % scale == 0:
            return f"{tokens // scale}{unit}"
    return str(tokens)


def counted(number: int, noun: str, write: Callable[[int], str] = str) -> str:
    """Formats a number with its noun: 1 rank, 256 ranks."""
    return f"{write(number)} {noun}{'s' * (number != 1)}"


def seconds(value: float) -> str:
    """Formats a duration with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if value >= 0.9995 * scale:  # rounds to at least 1 in this unit
            amount = value / scale
            return f"{amount:.0f} {unit}" if amount >= 999.5 else f"{amount:.3g} {unit}"
    return f"{value * 1e9:.2g} ns" if value else "0 s"


def times(ratio: float) -> str:
    """Formats a ratio: 1.87x."""
    if 0 < ratio < 0.005:
        return "<0.01x"
    return f"{ratio:.{2 * (ratio < 100)}f}x" if ratio < 999.5 else ">999x"


def size(value: float) -> str:
    """Formats bytes with three digits and a power-of-two unit."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            amount = value / scale
            return f"{amount:.0f} {unit}" if amount >= 999.5 else f"{amount:.3g} {unit}"
    return f"{value:.0f} B"


def numbers(values: Iterable[int]) -> str:
    """Formats integers, with consecutive ones as a range: 0-3+7."""
    values = list(values)
    if len(values) == 1:
        return str(int(values[0]))
    runs = list[list[int]]()
    for value in sorted(map(int, values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def in_lines(schedule: str, most: int = NAME) -> str:
    """Breaks the name of a schedule before parameters into lines of at most `most` characters."""
    first, *parameters = re.split("(?=:| --| / )", schedule)
    lines = [first]
    for part in parameters:
        if len(lines[-1] + part) > most:
            lines.append(f" {part.strip()}")
        else:
            lines[-1] += part
    return "\n".join(lines)
