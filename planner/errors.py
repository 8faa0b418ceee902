"""The exceptions of the project; their texts carry the numbers and are tested."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

Value = TypeVar("Value")
LONGEST_WORD = 200  # characters of an input that a message repeats


class RingloomError(ValueError):
    """Bad input of any kind: a plan, a file, a table of numbers, hardware, an address.

    Its text is safe to show on any terminal, whatever the input.
    """

    def __init__(self, text: object = "") -> None:
        super().__init__(safe_text(str(text)))


class PlanError(RingloomError):
    """An invalid plan, mask, partition or workload."""


class MultiPlanError(PlanError):
    """A PlanError that gives several reasons, one per line."""


def safe_text(text: str) -> str:
    """Returns the text with overlong words shortened and control characters escaped."""
    endless = rf"\S{{{LONGEST_WORD + 1},}}"
    return printable(re.sub(endless, lambda word: f"{word[0][:120]}...{word[0][-40:]}", text))


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


def as_tuple_of(kind: type[Value], given: Any, what: str) -> tuple[Value, ...]:
    """Returns one or several values as a tuple; raises PlanError for values of another type."""
    one = isinstance(given, kind) or not isinstance(given, Iterable)
    values = (given,) if one else tuple(given)
    for value in values:
        if not isinstance(value, kind):
            raise PlanError(f"{what} must be of type {kind.__name__}, not {brief(value)}")
    return values


def unknown(what: str, value: object, known: Iterable[str], how: str = "choose one of") -> str:
    """Returns the message for an unknown name: the closest known name, and all known names."""
    written = str(value)[:200]
    return f"unknown {what} {brief(value)}: {choices(written, known, how)}"


def choices(written: str, known: Iterable[str], how: str = "choose one of") -> str:
    """Returns the known name closest to the input, as a question, and all known names."""
    names = list(known)
    near = nearest(written, names)
    like = f"did you mean {near!r}? " if near else ""
    return f"{like}{how} {', '.join(names)}"


def nearest(written: str, names: Iterable[str]) -> str:
    """Returns a name that starts with the input, else the closest name, or "" for none."""
    asked, small = written.lower(), {name.lower(): name for name in names}
    begun = [name for name in small if asked and name.startswith(asked)]
    near = begun or get_close_matches(asked, small, 1)
    return small[near[0]] if near else ""
