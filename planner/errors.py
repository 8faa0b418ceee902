"""The exceptions of ringloom, and functions that write error messages."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

Value = TypeVar("Value")
LONGEST_WORD = 200  # characters of an input that a message repeats


class RingloomError(ValueError):
    """An error about invalid input, such as a plan, a file, hardware or a command-line option.

    Its message is safe to print on a terminal, even if the input contains control characters.
    """

    def __init__(self, text: object = "") -> None:
        super().__init__(safe_text(str(text)))


class PlanError(RingloomError):
    """An invalid plan, mask, partition or workload."""


class MultiPlanError(PlanError):
    """A PlanError that gives several reasons, one per line."""


def safe_text(text: str) -> str:
    """Returns the text with overlong words shortened and control characters escaped."""
    long_word = rf"\S{{{LONGEST_WORD + 1},}}"
    return printable(re.sub(long_word, lambda word: f"{word[0][:120]}...{word[0][-40:]}", text))


def printable(text: str) -> str:
    """Returns the text with control characters other than newlines and tabs escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else escape(c) for c in text)


def escape(character: str) -> str:
    """Returns the Python escape sequence of a character."""
    return character.encode("unicode_escape").decode()


def brief(value: object) -> str:
    """Returns the repr of a value on one line, shortened in the middle if long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python refuses to print a number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:42]}...{text[-15:]}"


def as_tuple_of(kind: type[Value], argument: Any, label: str) -> tuple[Value, ...]:
    """Returns one value or several values as a tuple; raises PlanError for other types."""
    is_single = isinstance(argument, kind) or not isinstance(argument, Iterable)
    values = (argument,) if is_single else tuple(argument)
    for value in values:
        if not isinstance(value, kind):
            raise PlanError(f"{label} must be of type {kind.__name__}, not {brief(value)}")
    return values


def unknown(label: str, value: object, known: Iterable[str], advice: str = "choose one of") -> str:
    """Returns the message for an unknown name: the closest known name, and all known names."""
    return f"unknown {label} {brief(value)}: {choices(str(value)[:200], known, advice)}"


def choices(text: str, known: Iterable[str], advice: str = "choose one of") -> str:
    """Returns a question with the known name closest to the text, and a list of all names."""
    names = list(known)
    closest = nearest(text, names)
    question = f"did you mean {closest!r}? " if closest else ""
    return f"{question}{advice} {', '.join(names)}"


def nearest(text: str, names: Iterable[str]) -> str:
    """Returns a name that starts with the text, else the most similar name, else ""."""
    prefix, by_lower = text.lower(), {name.lower(): name for name in names}
    matches = [name for name in by_lower if prefix and name.startswith(prefix)]
    matches = matches or get_close_matches(prefix, by_lower, 1)
    return by_lower[matches[0]] if matches else ""
