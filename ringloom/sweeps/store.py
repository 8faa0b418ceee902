"""Store: the rows of a sweep that are computed, one file per batch, and a log beside them.

DIR/sweep.json              the grid's digest: a folder belongs to one grid and one version
DIR/batches/00000064.json   a checksum, then the rows of a batch by number; named by its first
DIR/sweep.log               hosts and times

A batch is written under another name, flushed to disk and renamed, so that it is there whole or not
at all, whenever the sweep is killed.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TextIO

from planner.errors import RingloomError
from planner.version import VERSION
from ringloom.sweeps.points import Outcome, Row


@dataclass(frozen=True)
class Store:
    """Rows by the numbers of their points, those that are on disk."""

    folder: Path
    digest: str
    rows: dict[int, Row]
    lines: TextIO

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, digest: str) -> Iterator["Store"]:
        """Opens the store of a folder, which one process has at a time.

        Raises RingloomError where the folder belongs to another grid or process, cannot be written,
        or holds a batch that is damaged.
        """
        import fcntl  # Unix has it; elsewhere all but sweeps works

        try:
            (folder / "batches").mkdir(parents=True, exist_ok=True)
            lines = (folder / "sweep.log").open("a", encoding="utf-8")
        except OSError as error:
            raise RingloomError(f"cannot write {folder}: {error.strerror}") from None
        with lines:
            try:
                fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RingloomError(f"another process works on the sweep in {folder}") from None
            store = cls(folder, digest, {}, lines)
            store._claim()
            for path in sorted((folder / "batches").glob("*.json")):
                store._read(path)
            yield store

    def add(self, outcomes: Mapping[int, Outcome]) -> None:
        """Stores a batch: on disk, whole, once this returns."""
        rows = {number: made.row for number, made in outcomes.items()}
        text = json.dumps(list(rows.items()))
        path = self.folder / "batches" / f"{min(rows):08d}.json"
        write_whole(path, f"{self._checksum(text)}\n{text}\n".encode())
        self.rows.update(rows)
        for number, made in outcomes.items():
            self.log(f"point {number} on {made.host} took {made.seconds:.3f} s")

    def log(self, line: str) -> None:
        """Adds a line with the time to the log."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.lines.write(f"{now} {line}\n")
        self.lines.flush()

    def _claim(self) -> None:
        """Writes the digest into an empty folder; otherwise it must be there already."""
        path, mine = self.folder / "sweep.json", {"ringloom": VERSION, "grid": self.digest}
        if not path.exists():
            write_whole(path, (json.dumps(mine) + "\n").encode())
        elif path.read_text(encoding="utf-8") != json.dumps(mine) + "\n":
            raise RingloomError(
                f"{self.folder} holds the sweep of another grid, other files that it names, or"
                " another version of ringloom: choose another folder"
            )

    def _read(self, path: Path) -> None:
        checksum, _, text = path.read_text(encoding="utf-8", errors="replace").partition("\n")
        if checksum != self._checksum(text.removesuffix("\n")):
            raise RingloomError(f"{path} is damaged: delete it, and its points are computed again")
        self.rows.update(json.loads(text))

    def _checksum(self, text: str) -> str:
        return sha256(f"{self.digest}{text}".encode()).hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or not at all; raises RingloomError where it cannot be."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename, too
        finally:
            os.close(folder)
    except OSError as error:
        raise RingloomError(f"cannot write {path}: {error.strerror}") from None
