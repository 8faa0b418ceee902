"""records(path)   the rows of a CSV file by column name."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from planner.disk import read
from planner.errors import RingloomError

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
    return names, [
        {k: (v or "").strip() for k, v in row.items() if k is not None} for row in reader
    ]
