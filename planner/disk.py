"""read(path, parse, what)   reads and parses a file, or raises a one-line error.
from_json(text)           the value of a JSON text without duplicate keys.
largest()                 size limit in bytes of large files, such as plans: 64 MiB by default.
write(path, content)      replaces a file atomically.
writing(path)             context manager: turns failures to write into one-line errors.
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
    """Returns the size limit in bytes of a plan, trace or program, compressed or not.

    Raises RingloomError if the environment variable is not a size.
    """
    text = os.environ.get(TOLD, "")
    try:
        return tokens(text) if text else USUAL
    except RingloomError:
        raise RingloomError(f"{TOLD} must be a size such as 256M, not {brief(text)}") from None


def read(
    path: str | Path, parse: Callable[[bytes], Content], what: str, largest: int = SMALL
) -> Content:
    """Reads a file of at most `largest` bytes, unpacking .gz, and returns `parse(content)`.

    Raises a one-line RingloomError that starts with `what` if reading or parsing fails; an error
    from parsing that is a RingloomError keeps its class.
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
    """Returns how to raise the limit, if it can be raised."""
    return f": set {TOLD} if you trust the file" if limit == largest() else ""


def parse_table(path: Path, content: bytes) -> Any:
    """Returns the values of a file: JSON if its name ends in .json, else TOML."""
    return (from_json if path.suffix == ".json" else from_toml)(content.decode(), SMALL)


def from_toml(text: str, largest: int = SMALL) -> dict[str, Any]:
    """Returns the values of a TOML text; raises ValueError if it is invalid or too large."""
    _check_values(text, ".,[{=", largest)
    return tomllib.loads(text)


def from_json(text: str | bytes, largest: int = SMALL) -> Any:
    """Returns the value of a JSON text.

    Raises ValueError for invalid JSON and duplicate keys, and, before any value is built, for more
    than one value per 16 bytes of `largest`.
    """
    if isinstance(text, bytes):
        text = text.decode()
    _check_values(text, ",:[{", largest)
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _check_values(text: str, signs: str, largest: int) -> None:
    """Raises ValueError if the text has too many of the signs that precede values."""
    if (values := sum(map(text.count, signs))) > (most := largest // BYTES_PER_VALUE):
        raise ValueError(f"{values} values exceed the limit of {most}{_advice(largest)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        ((duplicate, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {duplicate[:40]!r} in an object")
    return entries


def write(path: str | Path, content: bytes) -> None:
    """Writes a file atomically; raises RingloomError if that fails.

    Targets that a new file cannot replace are written in place: pipes, mounts, files of another
    owner, and files in read-only folders.
    """
    with writing(path):
        if not _replace_file(Path(path), content):
            Path(path).write_bytes(content)


def _replace_file(path: Path, content: bytes) -> bool:
    """Returns True if a new file has replaced the old one, if any."""
    place = Path(os.path.realpath(path))  # keeps symbolic links
    old = path.stat() if path.exists() else None
    own = old is None or (S_ISREG(old.st_mode) and os.access(path, os.W_OK))
    if not (own and os.access(place.parent, os.W_OK)):
        return False
    draft = place.with_name(f".{uuid4().hex}")
    try:
        draft.write_bytes(content)
        if old:
            new = draft.stat()
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                return False
            draft.chmod(S_IMODE(old.st_mode))
        with suppress(OSError):  # for example on a mount
            os.replace(draft, place)
            return True
        return False
    finally:
        draft.unlink(missing_ok=True)


def is_file(path: str | Path) -> bool:
    """Returns True for a file, False for everything else, including invalid names."""
    return os.path.isfile(path)


def make_folder(path: str | Path) -> None:
    """Makes a folder unless it exists; raises RingloomError if that fails."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)


def with_folder(path: str) -> str:
    """Returns the path of a file to write; raises RingloomError if its folder does not exist."""
    with writing(path):
        os.stat(f"{os.path.dirname(os.path.realpath(path))}/")
    return path


def can_name(text: str) -> bool:
    """Returns True if the operating system accepts the text as a file name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turns failures to write a file or folder inside the block into RingloomErrors."""
    name = str(path) if isinstance(path, Path) else path
    if not isinstance(name, str) or name in ("", "-") or not can_name(name):
        raise RingloomError(f"cannot write {brief(name)}: it is not a file name")
    try:
        yield
    except BrokenPipeError:  # the reader has stopped reading
        raise
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror or error}") from None
