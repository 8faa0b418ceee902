"""Output of commands: JSON, CSV, tables and text on stdout, and progress on stderr.

On a terminal, commands that may take seconds show a progress bar. Elsewhere they show no progress,
except that work of several minutes prints a line every few seconds.
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
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment

from ringloom.csv_rows import safe_cell
from ringloom.planner.errors import brief, printable
from ringloom.rows import flat

Item = TypeVar("Item")
Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)
MIN_WIDTH, DEFAULT_WIDTH, MAX_WIDTH = 20, 80, 1000  # columns
LINE_INTERVAL = 10.0  # seconds
TYPED = click.core.ParameterSource.COMMANDLINE


class Number(click.FloatRange):
    """A number with optional bounds."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number; refuses NaN, which bounds do not exclude."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{brief(value)} is not a valid number.", param, ctx)
        return number


class Integer(click.IntRange):
    """An integer with optional bounds."""

    name = "integer"


def _format_flag(name: str, help_text: str) -> Callable[[Command], Command]:
    """Returns a flag for an output format, which `show` reads from the context."""

    def store(context: click.Context, _: click.Parameter, is_set: bool) -> None:
        context.meta[name] = is_set

    return click.option(name, is_flag=True, expose_value=False, callback=store, help=help_text)


json_option = _format_flag("--json", "Print one JSON object.")
csv_option = _format_flag("--csv", "Print the table as CSV.")


def console(stderr: bool = False) -> Console:
    """Returns a console that prints text literally, without interpreting markup in names.

    NO_COLOR switches off colours and progress bars, as when the output is piped.
    """
    force_terminal = False if os.environ.get("NO_COLOR") else None
    return Terminal(
        stderr=stderr,
        width=_width(),
        _environ={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
        force_terminal=force_terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


class Terminal(Console):
    """A console that escapes control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yields the segments of a text or table, with control characters escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _width() -> int | None:
    """Returns the width set by COLUMNS, or None for the width of the terminal."""
    if (setting := os.environ.get("COLUMNS")) is None:
        return None
    columns = int(setting) if re.fullmatch(r"[0-9]{1,9}", setting) else 0
    return min(max(columns, MIN_WIDTH), MAX_WIDTH) if columns else DEFAULT_WIDTH


def show(
    document: dict[str, Any],
    *pictures: Any,
    rows: list[dict[str, Any]] | None = None,
    text: str | None = None,
) -> None:
    """Prints the document with --json, the `rows` with --csv, and the `pictures` otherwise.

    `text`, such as a program or file names, follows the pictures and is not wrapped.
    """
    flags = click.get_current_context().meta
    as_json, as_csv = flags["--json"], flags.get("--csv", False)
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
    """Returns rows as CSV with a header; lists become words separated by spaces."""
    lines = [
        {
            k: " ".join(map(str, v)) if isinstance(v, list) else safe_cell(v)
            for k, v in flat(row).items()
        }
        for row in rows
    ]
    file = StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)))
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def progress_bar(last_column: ProgressColumn) -> Progress:
    """Returns a bar on stderr that disappears at the end and shows only on a terminal."""
    terminal, columns = console(stderr=True), (TextColumn("{task.description}"), BarColumn())
    return Progress(
        *columns,
        last_column,
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal,
    )


def progress(items: Iterable[Item], verb: str = "planning") -> Iterable[Item]:
    """Yields the items and shows a progress bar that names the current one."""
    listed = list(items)
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(verb, total=len(listed))
        for item in listed:
            bar.update(task, description=f"{verb} {item}", refresh=True)
            yield item
            bar.advance(task)


@contextmanager
def working(verb: str) -> Iterator[None]:
    """Shows the elapsed time of work whose duration is unknown."""
    with progress_bar(TimeElapsedColumn()) as bar:
        bar.add_task(verb, total=None)
        yield


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Shows the stages of work that may take minutes; yields `report(stage, done, total)`.

    `total` is 0 if it is unknown. On a terminal, this shows a bar; elsewhere, it prints a line
    every LINE_INTERVAL seconds.
    """
    start, lines = time.monotonic(), 0
    bar = progress_bar(TimeElapsedColumn())
    task = bar.add_task("", total=None)

    def report(stage: str, done: int, total: int) -> None:
        nonlocal lines
        bar.update(task, description=stage, completed=done, total=total or None)
        elapsed = time.monotonic() - start
        if bar.disable and elapsed >= (lines + 1) * LINE_INTERVAL:
            lines = int(elapsed / LINE_INTERVAL)
            count = f", {done} of {total}" if total else ""
            click.echo(f"ringloom: {elapsed:.0f} s, {stage}{count}", err=True)

    with bar:
        yield report


def typed_command(file: str = "") -> str:
    """Returns the command as typed, without --json and the output file.

    The path `file` is shortened to its last part.
    """
    typed, words = iter(click.get_current_context().obj), ["ringloom"]
    for word in typed:
        if word in ("-o", "--output"):
            next(typed)
        elif word != "--json" and not word.startswith(("-o", "--output=")):
            words.append(Path(word).name if word == file else word)
    return shlex.join(words)
