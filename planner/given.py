"""Checks numbers and names from files, commands and callers.

whole(what, value)    an integer within bounds
number(what, value)   a finite number within bounds
tokens(text)          an integer, perhaps with a suffix: 4096, 256k, 1M
integer(text)         an integer in digits: 3, -1
decimal(text)         a decimal number: 0.5, -3, 2e-6
name(what, value)     one printable line of text
"""

import math
import re
from numbers import Real
from operator import index
from typing import Any

from ringloom.planner.errors import PlanError, RingloomError, brief

LONGEST_NAME = 200  # characters
LARGEST_NUMBER = 1e300  # anything larger overflows in the first sum
SUFFIX = {"": 1, "k": 2**10, "K": 2**10, "M": 2**20}
DECIMAL = re.compile(r"\s*[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?\s*")


def whole(what: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Returns the value as an int; raises PlanError unless it is an integer within bounds."""
    try:
        integer = index(value)
    except TypeError:
        integer = None
    if integer is None or isinstance(value, bool):
        raise PlanError(f"{what} {brief(value)} is not a whole number")
    if integer < least:
        raise PlanError(f"{what} {brief(integer)} is less than {least}")
    if most is not None and integer > most:
        raise PlanError(f"{what} {brief(integer)} is more than {most}")
    return integer


def number(
    what: str, value: Any, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER
) -> float:
    """Returns the value as a float; raises RingloomError unless it is a number within bounds."""
    real: Any = value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RingloomError(f"{what} {brief(value)} is not a number")
    if not least <= real <= most:  # nor NaN
        raise RingloomError(f"{what} {brief(value)} is not between {least:g} and {most:g}")
    return float(real)


def tokens(text: str) -> int:
    """Returns the integer that `4096`, `256k` or `1M` stands for; k and M are powers of two."""
    digits = re.fullmatch(r"([0-9]{1,18})([kKM]?)", text.strip())
    if not digits:
        raise PlanError(f"{brief(text)} is not a number of tokens, such as 4096, 256k or 1M")
    return int(digits[1]) * SUFFIX[digits[2]]


def integer(text: str) -> int:
    """Returns the integer that a text stands for; raises RingloomError for any other text."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        raise RingloomError(f"{brief(text)} is not a whole number")
    return int(text)


def decimal(text: str) -> float:
    """Returns the finite number that a text stands for; raises RingloomError for any other text."""
    value = float(text) if DECIMAL.fullmatch(text) else math.inf
    if not abs(value) <= LARGEST_NUMBER:
        raise RingloomError(f"{brief(text)} is not a number")
    return value


def name(what: str, value: Any, longest: int = LONGEST_NAME) -> str:
    """Returns the text; raises RingloomError unless it is one line of at most `longest` characters.

    Control characters, which can move a terminal's cursor, and lone surrogates, which files cannot
    store, are refused.
    """
    if not isinstance(value, str):
        raise RingloomError(f"{what} must be a string, not {brief(value)}")
    if len(value) > longest:
        size = f"{len(value)} characters, more than {longest}"
        raise RingloomError(f"{what} must be a short text, not {brief(value)} of {size}")
    if not value.isprintable():
        printed = "a text of one line that can be printed"
        raise RingloomError(f"{what} must be {printed}, not {brief(value)}")
    return value
