"""read(path, parse, what)   what a parser makes of a file, or an error of one line.
from_json(text)           the value of a JSON text that names each key of an object once.
write(path, content)      a file that holds its content whole, or what it held before.
writing(path)             around what writes a file: an error of one line where that fails.
"""

import csv
import gzip
import json
import os
import shutil
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

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


def write(path: str | Path, content: bytes) -> None:
    """Writes a file, of which nobody ever sees a part; raises RingloomError where that fails.

    What is no file, such as a pipe, and a file in a folder that cannot be changed are written
    in place.
    """
    with writing(path):
        kept, place = Path(path), Path(os.path.realpath(path))  # a link stays one
        beside = place.with_name(f".{uuid4().hex}")
        if not (os.access(place.parent, os.W_OK) and (not kept.exists() or _is_own(kept))):
            kept.write_bytes(content)
            return
        try:
            beside.write_bytes(content)
            if kept.exists():
                shutil.copymode(place, beside)
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    return path.is_file() and os.access(path, os.W_OK)


def make_folder(path: str | Path) -> None:
    """Makes a folder where there is none; raises RingloomError where that fails."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)


def with_folder(path: str) -> str:
    """Returns the path of a file to write; raises RingloomError where its folder does not exist."""
    with writing(path):
        os.stat(f"{os.path.dirname(os.path.realpath(path))}/")
    return path


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raises RingloomError where what is done inside cannot write a file or folder."""
    if str(path) in ("", "-"):
        raise RingloomError(f"cannot write {path}: give the name of a file")
    try:
        yield
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror or error}") from None
