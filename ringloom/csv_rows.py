"""records(path)   reads the rows of a CSV file as dictionaries; other functions parse fields.
safe_cell(value)   escapes a value so that no spreadsheet evaluates it as a formula.
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

MAX_FILE = 2**22  # bytes
MAX_COLUMNS, MAX_CELLS = 256, 2**18

Record = dict[str, str]


def safe_cell(value: Any) -> Any:
    """Returns a value for a CSV file; quotes texts that spreadsheets would evaluate as formulas."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value[1:] and value[0] in "=+-@\t\r" else value)


def records(path: Path, columns: Sequence[str] = ()) -> list[Record]:
    """Returns the rows of a CSV file, with column names in lower case and spaces stripped.

    Raises RingloomError if the file is missing, unreadable, too large, empty, or lacks one of
    `columns`.
    """
    names, rows = read(path, _parse, f"{path}: cannot be read", MAX_FILE)
    if missing := [name for name in columns if name not in names]:
        listed = " ".join(", ".join(names)[:200].split()) or "none"
        raise RingloomError(f"{path}: no column {brief(missing[0])}; its columns are {listed}")
    if not rows:
        raise RingloomError(f"{path}: no rows")
    return rows


def _parse(content: bytes) -> tuple[list[str], list[Record]]:
    reader = csv.reader(StringIO(content.decode("utf-8-sig"), newline=""))
    names = [name.strip().lower() for name in next(reader, [])]
    if len(names) > MAX_COLUMNS:
        raise RingloomError(f"{len(names)} columns; the limit is {MAX_COLUMNS}")
    if duplicate := next((name for name in names if name and names.count(name) > 1), None):
        raise RingloomError(f"two columns are named {brief(duplicate)}")
    rows = list[Record]()
    limit = MAX_CELLS // max(1, len(names))
    for row in filter(None, reader):
        if len(rows) == limit:
            raise RingloomError(f"too many rows; the limit is {limit}")
        if any(row[len(names) :]):
            raise RingloomError(
                f"row {len(rows) + 1} has more cells than the header ({len(names)})"
            )
        cells = [cell.strip() for cell in row[: len(names)]]
        rows.append(dict(zip(names, [*cells, *[""] * (len(names) - len(cells))], strict=True)))
    return names, rows


def positive_integer(place: str, record: Record, column: str) -> int:
    """Returns a field as a positive integer; `place` names the row in errors."""
    try:
        return given.require_integer("", given.parse_integer(record[column]), 1, 2**31 - 1)
    except RingloomError:
        raise _invalid(place, record, column, "a positive integer") from None


def optional_number(place: str, record: Record, column: str) -> float | None:
    """Returns a field as a positive number, or None if it is missing or empty."""
    is_missing = record.get(column, "").lower() in ("", "null", "none", "nan", "-")
    return None if is_missing else positive_number(place, record, column)


def positive_number(place: str, record: Record, column: str) -> float:
    """Returns a field as a positive number; `place` names the row in errors."""
    try:
        return given.require_number("", given.parse_decimal(record[column]), math.ulp(0.0))
    except RingloomError:
        raise _invalid(place, record, column, "a positive number") from None


def _invalid(place: str, record: Record, column: str, form: str) -> RingloomError:
    return RingloomError(f"{place}: {column} must be {form}, not {brief(record[column])}")


def check_choice(place: str, value: str, choices: Iterable[str], kind: str) -> str:
    """Returns a value; raises RingloomError unless it is one of the choices."""
    names = tuple(choices)
    if value not in names:
        raise RingloomError(f"{place}: {unknown(kind, value, names)}")
    return value
