"""The exceptions of the project; their texts carry the numbers and are tested."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

Value = TypeVar("Value")
LONGEST_WORD = 200  # characters of what was given that a message repeats


class RingloomError(ValueError):
    """Bad input of any kind: a plan, a file, a table of numbers, hardware, an address.

    Its text can be shown on any terminal, whatever was given.
    """

    def __init__(self, text: object = "") -> None:
        super().__init__(shown(str(text)))


class PlanError(RingloomError):
    """A plan, mask, partition or workload that cannot mean anything."""


class Reasons(PlanError):
    """A PlanError for several reasons, each on a line of its own."""


def shown(text: str) -> str:
    """Returns a text that a message may show: endless words cut, control characters escaped."""
    endless = rf"\S{{{LONGEST_WORD + 1},}}"
    return printable(re.sub(endless, lambda word: f"{word[0][:120]}...{word[0][-40:]}", text))


def printable(text: str) -> str:
    """Returns a text whose control characters, but line ends and tabs, are escape sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else escaped(c) for c in text)


def escaped(character: str) -> str:
    """Returns the escape sequence that stands for a character in Python."""
    return character.encode("unicode_escape").decode()


def brief(value: object) -> str:
    """Returns the Python of a value on one line, its middle left out when long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python prints no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:42]}...{text[-15:]}"


def each(kind: type[Value], given: Any, what: str) -> tuple[Value, ...]:
    """Returns the values that are given, one or several; raises PlanError for other types."""
    one = isinstance(given, kind) or not isinstance(given, Iterable)
    values = (given,) if one else tuple(given)
    for value in values:
        if not isinstance(value, kind):
            raise PlanError(f"{what} must be of type {kind.__name__}, not {brief(value)}")
    return values


def unknown(what: str, value: object, known: Iterable[str], how: str = "choose one of") -> str:
    """Returns what to say of a name that is not known: the one most like it, and all there are."""
    written = str(value)[:200]
    return f"unknown {what} {brief(value)}: {choices(written, known, how)}"


def choices(written: str, known: Iterable[str], how: str = "choose one of") -> str:
    """Returns the name most like what is written, as a question, and all names that there are."""
    names = list(known)
    near = nearest(written, names)
    like = f"did you mean {near!r}? " if near else ""
    return f"{like}{how} {', '.join(names)}"


def nearest(written: str, names: Iterable[str]) -> str:
    """Returns the name that begins as what is written, or is most like it, or "" for none."""
    asked, small = written.lower(), {name.lower(): name for name in names}
    begun = [name for name in small if asked and name.startswith(asked)]
    near = begun or get_close_matches(asked, small, 1)
    return small[near[0]] if near else ""
