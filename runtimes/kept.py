"""Stores files in a private folder so that no other user can plant or change them.

The names of stored programs are predictable. So the folder and its files must not be symbolic
links, must belong to this user, and must not be writable by others. Files that violate this rule
are replaced; folders that violate it are refused.
"""

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG
from uuid import uuid4

from ringloom.planner.disk import writing
from ringloom.planner.errors import RingloomError

PRIVATE = 0o700  # mode of new folders
OTHERS_WRITE = 0o022  # write permissions of group and others
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag


def keep(content: bytes, path: Path) -> None:
    """Writes a file atomically, so that other processes never read an incomplete file.

    Raises RingloomError if the folder is a link, belongs to another user, or cannot be written.
    """
    with writing(path):
        _make_private(path.parent)
        if _has_content(path, content):
            return
        draft = path.with_name(f".{uuid4().hex}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(content)
            os.replace(draft, path)  # replaces a link but not its target
        finally:
            draft.unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    """Creates a folder, or revokes the write permissions of others on an existing folder."""
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    status = folder.lstat()
    if not S_ISDIR(status.st_mode) or not _is_mine(status):
        reason = "belongs to another user" if S_ISDIR(status.st_mode) else "is a link"
        raise RingloomError(f"cannot store programs in {folder}: it {reason}; set XDG_CACHE_HOME")
    if status.st_mode & OTHERS_WRITE:
        folder.chmod(S_IMODE(status.st_mode) & ~OTHERS_WRITE)


def _has_content(path: Path, content: bytes) -> bool:
    """Returns True for a private file with this content that is not a link."""
    with suppress(OSError), open(path, "rb", opener=_open_without_links) as file:
        status = os.fstat(file.fileno())
        is_private = (
            S_ISREG(status.st_mode) and _is_mine(status) and not status.st_mode & OTHERS_WRITE
        )
        return is_private and status.st_size == len(content) and file.read() == content
    return False


def _open_without_links(name: str, flags: int) -> int:
    return os.open(name, flags | NO_LINKS | getattr(os, "O_NONBLOCK", 0))


def _is_mine(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
