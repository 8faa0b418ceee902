"""Data that is too long to be read stands in a program compressed, and `unpacked` gives it back."""

import base64
import json
import zlib
from collections.abc import Iterable
from itertools import islice
from pprint import pformat
from typing import Any

WIDTH = 100
LINES = 60  # of data that is printed as it is
LONG = 4000  # characters of data that is compressed


def unpacked(text: str) -> Any:
    """Data out of compressed JSON."""
    return json.loads(zlib.decompress(base64.b85decode("".join(text.split()))))


def assigned(name: str, value: Any) -> str:
    """The assignment of nested lists and dictionaries: as they are, or if long compressed."""
    text = json.dumps(value, separators=(",", ":"))
    if len(text) < LONG:
        return f"{name} = {pformat(value, width=WIDTH, compact=True, sort_dicts=False)}\n"
    code = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    parts = (code[at : at + WIDTH] for at in range(0, len(code), WIDTH))
    return "\n".join([f'{name} = unpacked("""', *parts, '""")', ""])


def packed(name: str, value: Any, lines: Iterable[str]) -> list[str]:
    """The assignment of a value: these lines, or if they are many, compressed JSON."""
    if len(made := [*islice(lines, LINES + 1)]) <= LINES:
        return made
    text = json.dumps(value, separators=(",", ":"))
    code = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    parts = (code[at : at + WIDTH] for at in range(0, len(code), WIDTH))
    return [f'{name} = unpacked("""', *parts, '""")']
