"""records(path)   the rows of a CSV file by column name, and what their fields may hold."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from planner.disk import read
from planner.errors import RingloomError, unknown

LARGEST_FILE = 2**24  # bytes

Record = dict[str, str]


def records(path: Path, columns: Sequence[str] = ()) -> list[Record]:
    """Returns the rows of a CSV file; names of columns are in lower case, blanks are stripped.

    Raises RingloomError for a file that is missing, unreadable, too large, empty, or lacks one of
    `columns`.
    """
    names, rows = read(path, _parse, f"{path}: cannot be read", LARGEST_FILE)
    if missing := [name for name in columns if name not in names]:
        known = ", ".join(names) or "none"
        raise RingloomError(f"{path}: no column {missing[0]!r}; there are {known}")
    if not rows:
        raise RingloomError(f"{path}: no rows")
    return rows


def _parse(content: bytes) -> tuple[list[str], list[Record]]:
    reader = csv.DictReader(StringIO(content.decode("utf-8-sig"), newline=""))
    names = reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise RingloomError(f"{twice!r} names two columns")
    rows = [dict(row) for row in reader]
    for number, row in enumerate(rows, 1):
        if any(row.pop(None, ())):
            raise RingloomError(f"row {number} has more cells than the {len(names)} columns")
    return names, [{k: (v or "").strip() for k, v in row.items()} for row in rows]


def whole(where: str, record: Record, column: str) -> int:
    """Returns a column as a whole number from 1 up."""
    text = record[column]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**31:
        raise RingloomError(
            f"{where}: {column} must be a whole number from 1 up, not {text[:40]!r}"
        )
    return int(text)


def maybe(where: str, record: Record, column: str) -> float | None:
    """Returns a column as a positive number, None where it is missing or empty."""
    missing = record.get(column, "").lower() in ("", "null", "none", "nan", "-")
    return None if missing else positive(where, record, column)


def positive(where: str, record: Record, column: str) -> float:
    """Returns a column as a positive number."""
    try:
        value = float(text := record[column])
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise RingloomError(f"{where}: {column} must be a positive number, not {text[:40]!r}")
    return value


def chosen(where: str, value: str, among: Iterable[str], what: str) -> str:
    """Returns a value; raises RingloomError unless it is among the names."""
    names = tuple(among)
    if value not in names:
        raise RingloomError(f"{where}: {unknown(what, value, names)}")
    return value
