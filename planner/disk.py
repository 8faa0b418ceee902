"""read(path, parse, what)   what a parser makes of a file, or an error of one line.
from_json(text)           the value of a JSON text that names each key of an object once.
writing(path)             around what writes a file: an error of one line where that fails.
"""

import csv
import gzip
import json
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from planner.errors import RingloomError

Content = TypeVar("Content")
FAILURES = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RecursionError),
    *(csv.Error, zlib.error, SyntaxError),
)


def read(
    path: Path, parse: Callable[[bytes], Content], what: str, largest: int = 1 << 20
) -> Content:
    """Returns what `parse` makes of a file of at most `largest` bytes; .gz is unpacked.

    Raises RingloomError, one line that begins with `what`, for whatever reading or parsing raises;
    an error of a kind of its own where parsing raised it.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"the file is larger than {largest} bytes")
        return parse(content)
    except FAILURES as error:
        why = " ".join((getattr(error, "strerror", None) or str(error)).split())
        kind = type(error) if isinstance(error, RingloomError) else RingloomError
        raise kind(f"{what}: {why[:200]}") from None


def parse_table(path: Path, content: bytes) -> Any:
    """Returns the values of a file: of JSON where its name ends in .json, else of TOML."""
    return (from_json if path.suffix == ".json" else tomllib.loads)(content.decode())


def from_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text; raises ValueError for others, and for a key named twice."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice[:40]!r} is named twice in an object")
    return entries


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raises RingloomError where what is done inside cannot write a file or folder."""
    if str(path) == "-":
        raise RingloomError("cannot write -: give the name of a file")
    try:
        yield
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror or error}") from None
