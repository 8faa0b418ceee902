"""keep(content, path)   a file in a folder of one's own, which nobody else can plant or change.

The names of kept programs are known in advance. So neither the folder nor a file is reached through
a link, both belong to this user, nobody else can write to them, and what is not so is replaced by a
new file, or refused.
"""

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISREG
from uuid import uuid4

from ringloom.planner.disk import writing
from ringloom.planner.errors import RingloomError

OWN, OTHERS = 0o700, 0o022  # what folders are made with; what others may not
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag


def keep(content: bytes, path: Path) -> None:
    """Have a file hold a content, whole at any time: other processes read their own.

    Raises RingloomError where the folder is a link or another user's, or cannot be written.
    """
    with writing(path):
        _make_own(path.parent)
        if _holds(path, content):
            return
        beside = path.with_name(f".{uuid4().hex}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS
            with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
                file.write(content)
            os.replace(beside, path)  # a link is replaced, what it leads to stays
        finally:
            beside.unlink(missing_ok=True)


def _make_own(folder: Path) -> None:
    """Make a folder, or take what others may do from one's own."""
    folder.mkdir(parents=True, exist_ok=True, mode=OWN)
    status = folder.lstat()
    if not S_ISDIR(status.st_mode) or not _is_own(status):
        what = "is another user's" if S_ISDIR(status.st_mode) else "is a link"
        raise RingloomError(f"cannot keep programs in {folder}, which {what}: set XDG_CACHE_HOME")
    if status.st_mode & OTHERS:
        folder.chmod(S_IMODE(status.st_mode) & ~OTHERS)


def _holds(path: Path, content: bytes) -> bool:
    """Returns True for a file of one's own of that content, which no link leads to."""
    with suppress(OSError), open(path, "rb", opener=_open_itself) as file:
        status = os.fstat(file.fileno())
        own = S_ISREG(status.st_mode) and _is_own(status) and not status.st_mode & OTHERS
        return own and status.st_size == len(content) and file.read() == content
    return False


def _open_itself(name: str, flags: int) -> int:
    return os.open(name, flags | NO_LINKS | getattr(os, "O_NONBLOCK", 0))


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
