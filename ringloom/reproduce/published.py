"""The published numbers that come with ringloom, and rows in the same form from elsewhere."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from planner.errors import RingloomError

DATA = Path(__file__).parent / "data"
LARGEST_FILE = 2**22  # bytes

Record = dict[str, str]


def records(name: str | Path, columns: Sequence[str] = ()) -> list[Record]:
    """The rows of a table that comes with ringloom, or of a CSV file, by column name.

    Raises RingloomError for a file that is missing, unreadable, empty or lacks a column.
    """
    path = DATA / name if (DATA / name).is_file() else Path(name)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE} bytes")
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _checked(path, csv.DictReader(file), columns)
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RingloomError(f"{path}: cannot be read: {why}") from None


def _checked(path: Path, reader: "csv.DictReader[str]", columns: Sequence[str]) -> list[Record]:
    have = [name.strip() for name in reader.fieldnames or ()]
    if missing := [name for name in columns if name not in have]:
        raise RingloomError(
            f"{path}: no column {missing[0]!r}; there are {', '.join(have) or 'none'}"
        )
    reader.fieldnames = have
    rows = [{k: (v or "").strip() for k, v in row.items() if k is not None} for row in reader]
    if not rows:
        raise RingloomError(f"{path}: no rows")
    return rows


def whole(where: str, record: Record, column: str) -> int:
    """A column as a whole number from 1 up."""
    text = record[column]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**31:
        raise RingloomError(
            f"{where}: {column} must be a whole number from 1 up, not {text[:40]!r}"
        )
    return int(text)


def maybe(where: str, record: Record, column: str) -> float | None:
    """A column as a positive number, None where it is missing or empty."""
    if not (text := record.get(column, "")) or text.lower() in ("null", "none", "nan", "-"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise RingloomError(f"{where}: {column} must be a positive number, not {text[:40]!r}")
    return value


def chosen(where: str, value: str, among: Iterable[str], what: str) -> str:
    """A value that must be one of some names."""
    names = tuple(among)
    if value not in names:
        raise RingloomError(
            f"{where}: unknown {what} {value[:40]!r}: choose one of {', '.join(names)}"
        )
    return value
