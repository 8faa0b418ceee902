"""records(path)   reads the rows of a CSV file by column name; further functions parse fields.
cell(value)     escapes a value so that no spreadsheet evaluates it as a formula.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ringloom.planner import given
from ringloom.planner.disk import read
from ringloom.planner.errors import RingloomError, brief, printable, unknown

LARGEST_FILE = 2**22  # bytes
MOST_COLUMNS, MOST_CELLS = 256, 2**18

Record = dict[str, str]


def cell(value: Any) -> Any:
    """Returns a value for a CSV file; quotes texts that spreadsheets would evaluate as formulas."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value[1:] and value[0] in "=+-@\t\r" else value)


def records(path: Path, columns: Sequence[str] = ()) -> list[Record]:
    """Returns the rows of a CSV file, with column names in lower case and blanks stripped.

    Raises RingloomError if the file is missing, unreadable, too large, empty, or lacks one of
    `columns`.
    """
    names, rows = read(path, _parse, f"{path}: cannot be read", LARGEST_FILE)
    if missing := [name for name in columns if name not in names]:
        known = " ".join(", ".join(names)[:200].split()) or "none"
        raise RingloomError(f"{path}: no column {brief(missing[0])}; its columns are {known}")
    if not rows:
        raise RingloomError(f"{path}: no rows")
    return rows


def _parse(content: bytes) -> tuple[list[str], list[Record]]:
    reader = csv.reader(StringIO(content.decode("utf-8-sig"), newline=""))
    names = [name.strip().lower() for name in next(reader, [])]
    if len(names) > MOST_COLUMNS:
        raise RingloomError(f"{len(names)} columns; the limit is {MOST_COLUMNS}")
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise RingloomError(f"two columns are named {brief(twice)}")
    rows = list[Record]()
    most = MOST_CELLS // max(1, len(names))
    for row in filter(None, reader):
        if len(rows) == most:
            raise RingloomError(f"too many rows; the limit is {most}")
        if any(row[len(names) :]):
            raise RingloomError(
                f"row {len(rows) + 1} has more cells than the header ({len(names)})"
            )
        cells = [cell.strip() for cell in row[: len(names)]]
        rows.append(dict(zip(names, [*cells, *[""] * (len(names) - len(cells))], strict=True)))
    return names, rows


def whole(where: str, record: Record, column: str) -> int:
    """Returns a column as a positive integer."""
    try:
        return given.whole("", given.integer(record[column]), 1, 2**31 - 1)
    except RingloomError:
        raise _unlike(where, record, column, "a positive integer") from None


def maybe(where: str, record: Record, column: str) -> float | None:
    """Returns a column as a positive number, or None if it is missing or empty."""
    missing = record.get(column, "").lower() in ("", "null", "none", "nan", "-")
    return None if missing else positive(where, record, column)


def positive(where: str, record: Record, column: str) -> float:
    """Returns a column as a positive number."""
    try:
        return given.number("", given.decimal(record[column]), math.ulp(0.0))
    except RingloomError:
        raise _unlike(where, record, column, "a positive number") from None


def _unlike(where: str, record: Record, column: str, form: str) -> RingloomError:
    return RingloomError(f"{where}: {column} must be {form}, not {brief(record[column])}")


def chosen(where: str, value: str, among: Iterable[str], what: str) -> str:
    """Returns a value; raises RingloomError unless it is one of the names."""
    names = tuple(among)
    if value not in names:
        raise RingloomError(f"{where}: {unknown(what, value, names)}")
    return value
