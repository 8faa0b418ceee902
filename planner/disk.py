"""read(path, parse, label)   reads and parses a file, or raises a one-line error.
from_json(text)            parses JSON; rejects duplicate keys.
largest()                  returns the size limit of large files, such as plans: 64 MiB by default.
write(path, content)       replaces a file atomically.
writing(path)              a context manager that turns failures to write into one-line errors.
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
from ringloom.planner.given import parse_tokens

Content = TypeVar("Content")
FAILURES = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RecursionError, OverflowError),
    *(csv.Error, zlib.error, SyntaxError),
)
LIMIT_VARIABLE = "RINGLOOM_LARGEST_FILE"  # an environment variable, such as 256M
DEFAULT_LIMIT = 64 << 20  # bytes of a large file
SMALL_LIMIT = 1 << 20  # bytes of files that people write: hardware, scenarios, grids
BYTES_PER_VALUE = 16  # of a file; in memory, a JSON or TOML value takes six times as many


def largest() -> int:
    """Returns the limit in bytes of a plan, trace or program file, also after decompression.

    Raises RingloomError if the environment variable is not a size.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        return parse_tokens(text) if text else DEFAULT_LIMIT
    except RingloomError:
        raise RingloomError(
            f"{LIMIT_VARIABLE} must be a size such as 256M, not {brief(text)}"
        ) from None


def read(
    path: str | Path, parse: Callable[[bytes], Content], label: str, largest: int = SMALL_LIMIT
) -> Content:
    """Reads a file of at most `largest` bytes, decompressing .gz, and returns `parse(content)`.

    Raises a one-line RingloomError that starts with `label` if reading or parsing fails; if `parse`
    raises a subclass of RingloomError, the error has that class.
    """
    try:
        path = Path(path)
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"the file is larger than {largest} bytes{_advice(largest)}")
        return parse(content)
    except FAILURES as error:
        reason = shorten(getattr(error, "strerror", None) or str(error), 400, placeholder=" ...")
        kind = type(error) if isinstance(error, RingloomError) else RingloomError
        raise kind(f"{label}: {reason}") from None


def _advice(limit: int) -> str:
    """Returns advice on how to raise the limit, if possible."""
    return f": set {LIMIT_VARIABLE} if you trust the file" if limit == largest() else ""


def parse_table(path: Path, content: bytes) -> Any:
    """Parses the content of a file: JSON if its name ends in .json, else TOML."""
    return (from_json if path.suffix == ".json" else from_toml)(content.decode(), SMALL_LIMIT)


def from_toml(text: str, largest: int = SMALL_LIMIT) -> dict[str, Any]:
    """Parses TOML; raises ValueError if the text is invalid or has too many values."""
    _check_values(text, ".,[{=", largest)
    return tomllib.loads(text)


def from_json(text: str | bytes, largest: int = SMALL_LIMIT) -> Any:
    """Parses JSON.

    Raises ValueError for invalid JSON and duplicate keys, and, before it builds any value, for more
    than one value per 16 bytes of `largest`.
    """
    if isinstance(text, bytes):
        text = text.decode()
    _check_values(text, ",:[{", largest)
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _check_values(text: str, marks: str, largest: int) -> None:
    """Raises ValueError if the text has too many of the characters that precede values."""
    if (values := sum(map(text.count, marks))) > (most := largest // BYTES_PER_VALUE):
        raise ValueError(f"{values} values exceed the limit of {most}{_advice(largest)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        ((duplicate, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {duplicate[:40]!r} in an object")
    return entries


def write(path: str | Path, content: bytes) -> None:
    """Writes a file atomically; raises RingloomError on failure.

    Writes in place where a new file cannot replace the old one: pipes, mounts, files of another
    owner, and files in read-only folders.
    """
    with writing(path):
        if not _replace_file(Path(path), content):
            Path(path).write_bytes(content)


def _replace_file(path: Path, content: bytes) -> bool:
    """Writes a new file in place of the old one; returns False if that is not possible."""
    target = Path(os.path.realpath(path))  # keeps symbolic links
    old = path.stat() if path.exists() else None
    is_writable = old is None or (S_ISREG(old.st_mode) and os.access(path, os.W_OK))
    if not (is_writable and os.access(target.parent, os.W_OK)):
        return False
    draft = target.with_name(f".{uuid4().hex}")
    try:
        draft.write_bytes(content)
        if old:
            new = draft.stat()
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                return False
            draft.chmod(S_IMODE(old.st_mode))
        with suppress(OSError):  # for example on a mount
            os.replace(draft, target)
            return True
        return False
    finally:
        draft.unlink(missing_ok=True)


def is_file(path: str | Path) -> bool:
    """Returns True for a file, and False for other paths, even invalid names."""
    return os.path.isfile(path)


def make_folder(path: str | Path) -> None:
    """Makes a folder unless it exists; raises RingloomError on failure."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)


def require_folder(path: str) -> str:
    """Returns the path; raises RingloomError if the folder of the file does not exist."""
    with writing(path):
        os.stat(f"{os.path.dirname(os.path.realpath(path))}/")
    return path


def is_file_name(text: str) -> bool:
    """Returns True if the operating system accepts the text as a file name."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turns failures to write a file or folder inside the block into RingloomErrors."""
    name = str(path) if isinstance(path, Path) else path
    if not isinstance(name, str) or name in ("", "-") or not is_file_name(name):
        raise RingloomError(f"cannot write {brief(name)}: it is not a file name")
    try:
        yield
    except BrokenPipeError:  # the reading process has ended
        raise
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror or error}") from None
