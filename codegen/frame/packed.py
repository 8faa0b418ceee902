"""Prints the data of a program directly, or compressed if it is long; `unpack` restores it."""

import base64
import json
import zlib
from collections.abc import Collection
from typing import Any

MAX_ITEMS = 60  # in data that is printed directly
MAX_LENGTH = 2000  # characters of data that is printed directly
WIDTH = 80  # characters per line of a long string


def unpack(text: str) -> Any:
    """Restores data from compressed JSON."""
    return json.loads(zlib.decompress(base64.b85decode(text.encode().translate(None, b"\n"))))


def print_data(name: str, value: Collection[object], text: str = "") -> str:
    """Prints an assignment of data: `text`, its repr by default, or compressed JSON if long."""
    code = json.dumps(value, separators=(",", ":"))
    if len(value) > MAX_ITEMS or len(code) > MAX_LENGTH:
        packed = base64.b85encode(zlib.compress(code.encode(), 9)).decode()
        return "\n".join([f'{name} = unpack("""', *_cut(packed), '""")'])
    return f"{name} = {text or value}"


def print_string(text: str) -> str:
    """Prints a string literal, in several lines if it is long."""
    first, *others = map(repr, _cut(text))
    return f"({' '.join([first, *others])})" if others else first


def _cut(text: str) -> list[str]:
    return [text[at : at + WIDTH] for at in range(0, max(1, len(text)), WIDTH)]
