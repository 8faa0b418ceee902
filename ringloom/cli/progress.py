"""Progress on a terminal's stderr for what may take seconds or more; silent elsewhere."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, track

from ringloom.cli.output import console

Item = TypeVar("Item")


def progress(items: Iterable[Item], verb: str = "planning") -> Iterable[Item]:
    """The same items, with a bar that counts them."""
    terminal, listed = console(stderr=True), list(items)
    return track(listed, verb, console=terminal, transient=True, disable=not terminal.is_terminal)


@contextmanager
def working(verb: str) -> Iterator[None]:
    """A bar that says that work of unknown length goes on, and for how long it has."""
    terminal = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    shown = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    with shown:
        shown.add_task(verb, total=None)
        yield
