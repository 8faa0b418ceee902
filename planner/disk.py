"""read(path, parse, what)   what a parser makes of a file, or an error of one line.
from_json(text)           the value of a JSON text that names each key of an object once.
largest()                 bytes of a large file, such as a plan: 64 MiB unless told otherwise.
write(path, content)      a file that holds its content whole, or what it held before.
writing(path)             around what writes a file: an error of one line where that fails.
"""

import csv
import gzip
import json
import os
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG
from textwrap import shorten
from typing import Any, TypeVar
from uuid import uuid4

from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.given import tokens

Content = TypeVar("Content")
FAILURES = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RecursionError, OverflowError),
    *(csv.Error, zlib.error, SyntaxError),
)
TOLD = "RINGLOOM_LARGEST_FILE"  # such as 256M, in the environment
USUAL = 64 << 20  # bytes of a large file
SMALL = 1 << 20  # bytes of files that people write: hardware, scenarios, grids
BYTES_PER_VALUE = 16  # of a file: in memory a value of JSON or TOML takes six times as many


def largest() -> int:
    """Returns the most bytes of a plan, a trace or a program, packed or not.

    Raises RingloomError where the environment tells something else than a size.
    """
    text = os.environ.get(TOLD, "")
    try:
        return tokens(text) if text else USUAL
    except RingloomError:
        raise RingloomError(f"{TOLD} must be a size such as 256M, not {brief(text)}") from None


def read(
    path: str | Path, parse: Callable[[bytes], Content], what: str, largest: int = SMALL
) -> Content:
    """Returns what `parse` makes of a file of at most `largest` bytes; .gz is unpacked.

    Raises RingloomError, one line that begins with `what`, for whatever reading or parsing raises;
    an error of a kind of its own where parsing raised it.
    """
    try:
        path = Path(path)
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"the file is larger than {largest} bytes{_advice(largest)}")
        return parse(content)
    except FAILURES as error:
        why = shorten(getattr(error, "strerror", None) or str(error), 400, placeholder=" ...")
        kind = type(error) if isinstance(error, RingloomError) else RingloomError
        raise kind(f"{what}: {why}") from None


def _advice(limit: int) -> str:
    """Returns how to raise a limit that can be raised."""
    return f": set {TOLD}, where the file is trusted" if limit == largest() else ""


def parse_table(path: Path, content: bytes) -> Any:
    """Returns the values of a file: of JSON where its name ends in .json, else of TOML."""
    return (from_json if path.suffix == ".json" else from_toml)(content.decode(), SMALL)


def from_toml(text: str, largest: int = SMALL) -> dict[str, Any]:
    """Returns the values of a TOML text; raises ValueError for others, and for too many values."""
    _check_values(text, ".,[{=", largest)
    return tomllib.loads(text)


def from_json(text: str | bytes, largest: int = SMALL) -> Any:
    """Returns the value of a JSON text.

    Raises ValueError for other texts, for a key named twice, and for more values than texts of at
    most `largest` bytes may hold, one for 16 bytes, before any is made.
    """
    if isinstance(text, bytes):
        text = text.decode()
    _check_values(text, ",:[{", largest)
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _check_values(text: str, signs: str, largest: int) -> None:
    """Raises ValueError where the signs that stand before values are too many."""
    if (values := sum(map(text.count, signs))) > (most := largest // BYTES_PER_VALUE):
        raise ValueError(f"{values} values are more than {most}{_advice(largest)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice[:40]!r} is named twice in an object")
    return entries


def write(path: str | Path, content: bytes) -> None:
    """Writes a file, of which nobody ever sees a part; raises RingloomError where that fails.

    What no new file can stand for is written in place: a pipe, a mount, a file of another owner,
    or one in a folder that cannot be changed.
    """
    with writing(path):
        if not _replaced(Path(path), content):
            Path(path).write_bytes(content)


def _replaced(path: Path, content: bytes) -> bool:
    """Returns True if a new file has taken the place of what was there, if anything."""
    place = Path(os.path.realpath(path))  # a link stays one
    old = path.stat() if path.exists() else None
    own = old is None or (S_ISREG(old.st_mode) and os.access(path, os.W_OK))
    if not (own and os.access(place.parent, os.W_OK)):
        return False
    beside = place.with_name(f".{uuid4().hex}")
    try:
        beside.write_bytes(content)
        if old:
            new = beside.stat()
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                return False
            beside.chmod(S_IMODE(old.st_mode))
        with suppress(OSError):  # as for a mount
            os.replace(beside, place)
            return True
        return False
    finally:
        beside.unlink(missing_ok=True)


def is_file(path: str | Path) -> bool:
    """Returns True for a file, False for everything else, names that no file can have included."""
    return os.path.isfile(path)


def make_folder(path: str | Path) -> None:
    """Makes a folder where there is none; raises RingloomError where that fails."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)


def with_folder(path: str) -> str:
    """Returns the path of a file to write; raises RingloomError where its folder does not exist."""
    with writing(path):
        os.stat(f"{os.path.dirname(os.path.realpath(path))}/")
    return path


def can_name(text: str) -> bool:
    """Returns True for what the system can take for the name of a file."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raises RingloomError where what is done inside cannot write a file or folder."""
    name = str(path) if isinstance(path, Path) else path
    if not isinstance(name, str) or name in ("", "-") or not can_name(name):
        raise RingloomError(f"cannot write {brief(name)}: give the name of a file")
    try:
        yield
    except BrokenPipeError:  # who reads has enough
        raise
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror or error}") from None
