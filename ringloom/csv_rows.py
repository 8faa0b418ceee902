"""records(path)   the rows of a CSV file by column name."""

import csv
from collections.abc import Sequence
from pathlib import Path

from planner.errors import RingloomError

LARGEST_FILE = 2**24  # bytes

Record = dict[str, str]


def records(path: Path, columns: Sequence[str] = ()) -> list[Record]:
    """Returns the rows of a CSV file; names of columns are in lower case, blanks are stripped.

    Raises RingloomError for a file that is missing, unreadable, too large, empty, or lacks one of
    `columns`.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE} bytes")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames = [n.strip().lower() for n in reader.fieldnames or ()]
            rows = [
                {k: (v or "").strip() for k, v in row.items() if k is not None} for row in reader
            ]
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RingloomError(f"{path}: cannot be read: {why}") from None
    if missing := [name for name in columns if name not in names]:
        known = ", ".join(names) or "none"
        raise RingloomError(f"{path}: no column {missing[0]!r}; there are {known}")
    if not rows:
        raise RingloomError(f"{path}: no rows")
    return rows
