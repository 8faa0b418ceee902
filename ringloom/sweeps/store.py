"""Store: the rows of a sweep that are computed, a line of sweep.jsonl per batch.

The first line holds the grid's digest: a folder belongs to one grid and one version. Every other
one holds a checksum, then the points of a batch by number: row, host and seconds. A line is flushed
to disk before the next batch begins; what a killed sweep left of its last one is cut off.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ringloom.planner.disk import make_folder, writing
from ringloom.planner.errors import RingloomError
from ringloom.planner.version import VERSION
from ringloom.sweeps.grid import Row

NAME = "sweep.jsonl"


@dataclass(frozen=True)
class Store:
    """Rows by the numbers of their points, those that are on disk."""

    digest: str
    rows: dict[int, Row]
    file: BinaryIO

    def add(self, outcomes: Mapping[int, dict[str, Any]]) -> None:
        """Stores a batch: on disk, whole, once this returns."""
        batch = json.dumps(outcomes).encode()
        self.write(self.checksum(batch) + b" " + batch)
        self.rows.update({number: made["row"] for number, made in outcomes.items()})

    def write(self, line: bytes) -> None:
        """Appends a line; raises RingloomError where it cannot be written."""
        with writing(self.file.name), open(self.file.name, "ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def checksum(self, batch: bytes) -> bytes:
        """Returns what stands before a batch of this grid."""
        return sha256(self.digest.encode() + batch).hexdigest().encode()


@contextmanager
def opened(folder: Path, digest: str) -> Iterator[Store]:
    """Opens the store of a folder, which one process has at a time.

    Raises RingloomError where the folder belongs to another grid or process, cannot be written, or
    holds a batch that is damaged.
    """
    import fcntl  # Unix has it; elsewhere all but sweeps works

    make_folder(folder)
    with writing(folder / NAME):
        file = (folder / NAME).open("a+b")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RingloomError(f"another process works on the sweep in {folder}") from None
        store = Store(digest, {}, file)
        _read(store, folder)
        yield store


def _read(store: Store, folder: Path) -> None:
    """Takes the rows of all whole lines; the first one is written where there is none."""
    store.file.seek(0)
    content = store.file.read()
    *lines, rest = content.split(b"\n")
    store.file.truncate(len(content) - len(rest))
    own = json.dumps({"ringloom": VERSION, "grid": store.digest}).encode()
    if not lines:
        store.write(own)
    elif lines[0] != own:
        raise RingloomError(
            f"{folder} holds the sweep of another grid, other files that it names, or another"
            " version of ringloom: choose another folder"
        )
    for number, line in enumerate(lines[1:], 2):
        checksum, _, batch = line.partition(b" ")
        if checksum != store.checksum(batch):
            raise RingloomError(
                f"line {number} of {store.file.name} is damaged: delete it, and its points are"
                " computed again"
            )
        store.rows.update({int(n): made["row"] for n, made in json.loads(batch).items()})
