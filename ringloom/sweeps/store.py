"""Store: the computed rows of a sweep, one line of sweep.jsonl per batch.

The first line has the digest of the grid, because a folder belongs to one grid and one version. Any
other line has a checksum, then the points of a batch by number: row, host and seconds. Each line is
flushed to disk before the next batch starts; an incomplete last line of a killed sweep is removed.
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
    """The rows on disk by point number."""

    digest: str
    rows: dict[int, Row]
    file: BinaryIO

    def add(self, outcomes: Mapping[int, dict[str, Any]]) -> None:
        """Stores a batch; returns once it is completely on disk."""
        batch = json.dumps(outcomes).encode()
        self.write(self.checksum(batch) + b" " + batch)
        self.rows.update({number: outcome["row"] for number, outcome in outcomes.items()})

    def write(self, line: bytes) -> None:
        """Appends a line; raises RingloomError if it cannot be written."""
        with writing(self.file.name), open(self.file.name, "ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def checksum(self, batch: bytes) -> bytes:
        """Returns the checksum of a batch of this grid."""
        return sha256(self.digest.encode() + batch).hexdigest().encode()


@contextmanager
def open_store(folder: Path, digest: str) -> Iterator[Store]:
    """Opens the store of a folder for one process at a time.

    Raises RingloomError if the folder belongs to another grid or process, cannot be written, or has
    a damaged batch.
    """
    import fcntl  # exists only on Unix

    make_folder(folder)
    with writing(folder / NAME):
        file = (folder / NAME).open("a+b")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RingloomError(f"another process is using the sweep in {folder}") from None
        store = Store(digest, {}, file)
        _read(store, folder)
        yield store


def _read(store: Store, folder: Path) -> None:
    """Reads the rows of all complete lines; writes the first line if there is none."""
    store.file.seek(0)
    content = store.file.read()
    *lines, incomplete = content.split(b"\n")
    store.file.truncate(len(content) - len(incomplete))
    header = json.dumps({"ringloom": VERSION, "grid": store.digest}).encode()
    if not lines:
        store.write(header)
    elif lines[0] != header:
        raise RingloomError(
            f"{folder} contains the sweep of another grid, of other file contents, or of another"
            " version of ringloom: choose another folder"
        )
    for number, line in enumerate(lines[1:], 2):
        checksum, _, batch = line.partition(b" ")
        if checksum != store.checksum(batch):
            raise RingloomError(
                f"line {number} of {store.file.name} is damaged: delete it to compute its points"
                " again"
            )
        store.rows.update({int(n): outcome["row"] for n, outcome in json.loads(batch).items()})
