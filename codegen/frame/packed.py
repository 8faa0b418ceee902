"""Data of a program: printed directly, or compressed if long; `unpacked` restores it."""

import base64
import json
import zlib
from collections.abc import Collection
from typing import Any

LINES = 60  # most lines of data that is printed directly
LONG = 2000  # characters of data that is compressed
PIECE = 80  # characters of a text that is printed in pieces


def unpacked(text: str) -> Any:
    """Data out of compressed JSON."""
    return json.loads(zlib.decompress(base64.b85decode(text.encode().translate(None, b"\n"))))


def assigned(name: str, value: Collection[object], text: str = "") -> str:
    """Prints the assignment of data, by default its repr; compressed JSON if long."""
    code = _json(value)
    if len(value) > LINES or len(code) > LONG:
        return _compressed(name, code)
    return f"{name} = {text or value}"


def literal(text: str) -> str:
    """A string, in pieces if it is long."""
    first, *others = map(repr, _cut(text))
    return f"({' '.join([first, *others])})" if others else first


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _compressed(name: str, text: str) -> str:
    code = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return "\n".join([f'{name} = unpacked("""', *_cut(code), '""")'])


def _cut(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, max(1, len(text)), PIECE)]
