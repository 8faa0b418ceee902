"""Answers of commands: one JSON object for programs, pictures for people, files for both.

What may take seconds or more shows its progress on a terminal's stderr; elsewhere it is silent,
or, where it may take minutes, says a line now and then.
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
    """A number, which may have bounds."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number; NaN, which no bound holds off, is none."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{brief(value)} is not a valid number.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number, which may have bounds."""

    name = "integer"


def _form(name: str, meaning: str) -> Callable[[Command], Command]:
    """An option that asks for an answer in a form, which `show` finds in the context."""

    def remember(context: click.Context, _: click.Parameter, chosen: bool) -> None:
        context.meta[name] = chosen

    return click.option(name, is_flag=True, expose_value=False, callback=remember, help=meaning)


json_option = _form("--json", "One JSON object on stdout.")
csv_option = _form("--csv", "The table as CSV.")


def console(stderr: bool = False) -> Console:
    """The terminal; with NO_COLOR, as if it were a pipe: neither colours nor moving bars.

    It takes texts to the letter: names of plans, machines and files may hold brackets and colons.
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
    """A console on which texts cannot do what control characters do: they are escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a text or a picture."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def _width() -> int | None:
    """Returns the columns to print in, None for as many as the terminal has."""
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
    """The one JSON object, or the rows of its table as CSV, or the pictures of it.

    A `text`, such as a program or the names of files, is shown to the letter below the pictures:
    neither wrapped nor styled.
    """
    asked = click.get_current_context().meta
    as_json, as_csv = asked["--json"], asked.get("--csv", False)
    if as_json and as_csv:
        raise click.UsageError("either --json or --csv")
    if as_csv and rows is None:
        raise click.UsageError("--csv writes tables: this answer is none")
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
    """Rows under a line of their names; the entries of a list stand side by side."""
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
    """The same items, with a bar that names the one at hand and counts them."""
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
    """A bar that says that work of unknown length goes on, and for how long it has."""
    terminal = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    shown = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    with shown:
        shown.add_task(verb, total=None)
        yield


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Shows the stages of what may take minutes: yields what is told their names, as often as it
    goes on, with what is done, and of how much (0 where that is not known).

    A bar on a terminal; elsewhere a line every LINE_EVERY seconds.
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
    """The command as it was typed, without where its answer goes and in which form.

    Of a `file` in it, the name alone.
    """
    words, kept = iter(click.get_current_context().obj), ["ringloom"]
    for word in words:
        if word in ("-o", "--output"):
            next(words)
        elif word != "--json" and not word.startswith(("-o", "--output=")):
            kept.append(Path(word).name if word == file else word)
    return shlex.join(kept)
