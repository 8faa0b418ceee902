"""Checks numbers and names from files, commands and callers.

require_integer(label, value)   an integer within bounds
require_number(label, value)    a finite number within bounds
require_name(label, value)      one printable line of text
parse_tokens(text)              an integer, optionally with a suffix: 4096, 256k, 1M
parse_integer(text)             an integer in digits: 3, -1
parse_decimal(text)             a decimal number: 0.5, -3, 2e-6
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


def require_integer(label: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Returns the value as an int; raises PlanError unless it is an integer within bounds."""
    try:
        integer = index(value)
    except TypeError:
        integer = None
    if integer is None or isinstance(value, bool):
        raise PlanError(f"{label} {brief(value)} is not a whole number")
    if integer < least:
        raise PlanError(f"{label} {brief(integer)} is less than {least}")
    if most is not None and integer > most:
        raise PlanError(f"{label} {brief(integer)} is more than {most}")
    return integer


def require_number(
    label: str, value: Any, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER
) -> float:
    """Returns the value as a float; raises RingloomError unless it is a number within bounds."""
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RingloomError(f"{label} {brief(value)} is not a number")
    if not least <= number <= most:  # NaN fails, too
        raise RingloomError(f"{label} {brief(value)} is not between {least:g} and {most:g}")
    return float(number)


def parse_tokens(text: str) -> int:
    """Parses a number of tokens such as `4096`, `256k` or `1M`; k and M are powers of two."""
    digits = re.fullmatch(r"([0-9]{1,18})([kKM]?)", text.strip())
    if not digits:
        raise PlanError(f"{brief(text)} is not a number of tokens, such as 4096, 256k or 1M")
    return int(digits[1]) * SUFFIX[digits[2]]


def parse_integer(text: str) -> int:
    """Parses an integer; raises RingloomError for any other text."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        raise RingloomError(f"{brief(text)} is not a whole number")
    return int(text)


def parse_decimal(text: str) -> float:
    """Parses a finite number; raises RingloomError for any other text."""
    value = float(text) if DECIMAL.fullmatch(text) else math.inf
    if not abs(value) <= LARGEST_NUMBER:
        raise RingloomError(f"{brief(text)} is not a number")
    return value


def require_name(label: str, value: Any, longest: int = LONGEST_NAME) -> str:
    """Returns the text; raises RingloomError unless it is one line of at most `longest` characters.

    Rejects control characters, which can move a terminal's cursor, and lone surrogates, which files
    cannot store.
    """
    if not isinstance(value, str):
        raise RingloomError(f"{label} must be a string, not {brief(value)}")
    if len(value) > longest:
        limit = f"must have at most {longest} characters"
        raise RingloomError(f"{label} {limit}, not {len(value)}: {brief(value)}")
    if not value.isprintable():
        raise RingloomError(f"{label} must be one line of printable text, not {brief(value)}")
    return value
