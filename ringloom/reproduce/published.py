"""The published numbers that come with ringloom, and fields of rows in the same form."""

from collections.abc import Iterable
from pathlib import Path

from planner.errors import RingloomError
from ringloom import csv_rows
from ringloom.csv_rows import Record

DATA = Path(__file__).parent / "data"


def records(name: str) -> list[Record]:
    """Returns the rows of a table that comes with ringloom, by column name."""
    return csv_rows.records(DATA / name)


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
    """Returns a value; raises RingloomError unless it is among the names."""
    names = tuple(among)
    if value not in names:
        raise RingloomError(
            f"{where}: unknown {what} {value[:40]!r}: choose one of {', '.join(names)}"
        )
    return value
