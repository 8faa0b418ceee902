"""Output of commands: JSON, CSV, tables and texts, and progress on stderr.

On a terminal, work that may take seconds shows a progress bar. Elsewhere it is silent, or prints a
line every few seconds where it may take minutes.
"""

import csv
import json
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment

from ringloom.csv_rows import cell
from ringloom.planner.errors import brief, printable
from ringloom.rows import flat

Item = TypeVar("Item")
Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)
NARROWEST, USUAL, WIDEST = 20, 80, 1000  # columns
LINE_EVERY = 10.0  # seconds
TYPED = click.core.ParameterSource.COMMANDLINE


class Number(click.FloatRange):
    """A number with optional bounds."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number; refuses NaN, which passes every comparison with a bound."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{brief(value)} is not a valid number.", param, ctx)
        return number


class Whole(click.IntRange):
    """An integer with optional bounds."""

    name = "integer"


def _form(name: str, meaning: str) -> Callable[[Command], Command]:
    """Returns a flag for an output format, which `show` reads from the context."""

    def remember(context: click.Context, _: click.Parameter, chosen: bool) -> None:
        context.meta[name] = chosen

    return click.option(name, is_flag=True, expose_value=False, callback=remember, help=meaning)


json_option = _form("--json", "Print one JSON object.")
csv_option = _form("--csv", "Print the table as CSV.")


def console(stderr: bool = False) -> Console:
    """Returns the terminal; with NO_COLOR, it has no colours and no progress bars, like a pipe.

    Texts are printed literally: names of plans, machines and files may contain markup.
    """
    plain = False if os.environ.get("NO_COLOR") else None
    return Terminal(
        stderr=stderr,
        width=_width(),
        _environ={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        force_terminal=plain,
        highlight=False,
        markup=False,
        emoji=False,
    )


class Terminal(Console):
    """A console that escapes control characters in texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yields the segments of a text or table."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _width() -> int | None:
    """Returns the width in columns, or None for the width of the terminal."""
    if (asked := os.environ.get("COLUMNS")) is None:
        return None
    columns = int(asked) if re.fullmatch(r"[0-9]{1,9}", asked) else 0
    return min(max(columns, NARROWEST), WIDEST) if columns else USUAL


def show(
    document: dict[str, Any],
    *pictures: Any,
    rows: list[dict[str, Any]] | None = None,
    text: str | None = None,
) -> None:
    """Prints the document as JSON, its `rows` as CSV, or its `pictures`, as the options ask.

    `text`, such as a program or file names, is printed below the pictures without wrapping.
    """
    asked = click.get_current_context().meta
    as_json, as_csv = asked["--json"], asked.get("--csv", False)
    if as_json and as_csv:
        raise click.UsageError("--json and --csv cannot be combined")
    if as_csv and rows is None:
        raise click.UsageError("--csv is only available for commands that print a table")
    if as_json:
        click.echo(json.dumps(document).replace("\x7f", "\\u007f"))
    elif as_csv and rows is not None:
        click.echo(csv_text(rows), nl=False)
    else:
        with (drawing := console()).capture() as drawn:
            for picture in pictures:
                drawing.print(picture)
        lines = "" if text is None else printable(text.removesuffix("\n") + "\n")
        click.echo(drawn.get() + lines, nl=False)


def csv_text(rows: list[dict[str, Any]]) -> str:
    """Returns rows as CSV with a header; entries of a list are joined by blanks."""
    lines = [
        {k: " ".join(map(str, v)) if isinstance(v, list) else cell(v) for k, v in flat(row).items()}
        for row in rows
    ]
    file = StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)))
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def progress(items: Iterable[Item], verb: str = "planning") -> Iterable[Item]:
    """Yields the items and shows a progress bar with the current one."""
    terminal, listed = console(stderr=True), list(items)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    shown = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    with shown:
        task = shown.add_task(verb, total=len(listed))
        for item in listed:
            shown.update(task, description=f"{verb} {item}", refresh=True)
            yield item
            shown.advance(task)


@contextmanager
def working(verb: str) -> Iterator[None]:
    """Shows the elapsed time of work whose length is unknown."""
    terminal = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    shown = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    with shown:
        shown.add_task(verb, total=None)
        yield


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Shows the stages of work that may take minutes; yields a callback `tell(stage, done, of)`.

    `of` is 0 if the total is not known. Shows a bar on a terminal, elsewhere a line every
    LINE_EVERY seconds.
    """
    terminal, began, lines = console(stderr=True), time.monotonic(), 0
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    shown = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    task = shown.add_task("", total=None)

    def tell(stage: str, done: int, of: int) -> None:
        nonlocal lines
        shown.update(task, description=stage, completed=done, total=of or None)
        elapsed = time.monotonic() - began
        if shown.disable and elapsed >= (lines + 1) * LINE_EVERY:
            lines = int(elapsed / LINE_EVERY)
            counted = f", {done} of {of}" if of else ""
            click.echo(f"ringloom: {elapsed:.0f} s, {stage}{counted}", err=True)

    with shown:
        yield tell


def typed_command(file: str = "") -> str:
    """Returns the command as typed, without --json and the output file.

    A path equal to `file` is shortened to its name.
    """
    words, kept = iter(click.get_current_context().obj), ["ringloom"]
    for word in words:
        if word in ("-o", "--output"):
            next(words)
        elif word != "--json" and not word.startswith(("-o", "--output=")):
            kept.append(Path(word).name if word == file else word)
    return shlex.join(kept)
