"""Stores files in a private folder so that no other user can plant or change them.

The names of stored programs are predictable. So the folder and its files must not be symbolic
links, must belong to this user, and must not be writable by others. A file that violates this is
replaced; a folder that does is refused.
"""

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG
from uuid import uuid4

from ringloom.planner.disk import writing
from ringloom.planner.errors import RingloomError

OWN, OTHERS = 0o700, 0o022  # mode of new folders; permissions that nobody else may have
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag


def keep(content: bytes, path: Path) -> None:
    """Writes a file atomically, so that other processes never read a part of it.

    Raises RingloomError if the folder is a link, belongs to another user, or cannot be written.
    """
    with writing(path):
        _make_own(path.parent)
        if _holds(path, content):
            return
        draft = path.with_name(f".{uuid4().hex}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(content)
            os.replace(draft, path)  # replaces a link and leaves its target alone
        finally:
            draft.unlink(missing_ok=True)


def _make_own(folder: Path) -> None:
    """Creates a folder, or revokes write permissions of others on an existing one."""
    folder.mkdir(parents=True, exist_ok=True, mode=OWN)
    status = folder.lstat()
    if not S_ISDIR(status.st_mode) or not _is_own(status):
        what = "belongs to another user" if S_ISDIR(status.st_mode) else "is a link"
        raise RingloomError(f"cannot store programs in {folder}: it {what}; set XDG_CACHE_HOME")
    if status.st_mode & OTHERS:
        folder.chmod(S_IMODE(status.st_mode) & ~OTHERS)


def _holds(path: Path, content: bytes) -> bool:
    """Returns True for a private file with this content that is not a link."""
    with suppress(OSError), open(path, "rb", opener=_open_itself) as file:
        status = os.fstat(file.fileno())
        own = S_ISREG(status.st_mode) and _is_own(status) and not status.st_mode & OTHERS
        return own and status.st_size == len(content) and file.read() == content
    return False


def _open_itself(name: str, flags: int) -> int:
    return os.open(name, flags | NO_LINKS | getattr(os, "O_NONBLOCK", 0))


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
