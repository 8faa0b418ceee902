"""Shows below the commands of a page what they print: run anew in every build, in the page's order.

A block that compares or simulates has a picture too, of its first comparison or timeline.

Left alone are blocks that already show what their commands print, which the tests compare with what
they do print, and commands that need more than the core or whose answer is a file's name.
"""

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure
from pages import FENCE, Block, blocks, execute

from ringloom.figures import sheet
from simulator.bars import FEW

PICTURES = Path(__file__).parent / "generated/pictures"
LINES = 24  # of an output that a page shows
SILENT = {"check", "emit", "figures", "report", "sweep", "tables"}


def with_outputs(page: Path) -> str:
    """Returns the Markdown of a page with what its commands print, each block's below it."""
    outputs = {line: (printed, drawn) for line, printed, drawn in _run(page)}
    text, shown = page.read_text(encoding="utf-8"), ""
    at = 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start(2)) + 1
        shown += text[at : fence.end()]
        at = fence.end()
        printed, drawn = outputs.get(line, ("", ""))
        shown += f"\n\n```text\n{printed}\n```" if printed else ""
        shown += f"\n\n{drawn}\n" if drawn else ""
    return shown + text[at:]


def _run(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yields the first line of each block, what it prints, and its picture."""
    scope = dict[str, Any]()
    needed = "write_text" in page.read_text(encoding="utf-8")  # commands read what Python writes
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "python" and needed:
                execute(block, page, scope)
            elif block.language == "console" and not block.shown.strip():
                with kept("compare", "compared") as first, kept("simulate", "simulate") as second:
                    printed = "\n\n".join(filter(None, _outputs(block)))
                yield block.line, printed, picture(page, block.line, [*first, *second])


@contextlib.contextmanager
def kept(command: str, function: str) -> Iterator[list[Any]]:
    """Collects what a function returns to a command."""
    module, results = import_module(f"ringloom.cli.{command}"), list[Any]()
    asked = getattr(module, function)

    def keep(*given: Any, **more: Any) -> Any:
        results.append(asked(*given, **more))
        return results[-1]

    with patch.object(module, function, keep):
        yield results


def picture(page: Path, line: int, results: list[Any]) -> str:
    """Draws the first of some comparisons and predictions; returns the Markdown that shows it."""
    if not results:
        return ""
    one, name = results[0], f"{page.stem}-{line}"

    def draw() -> Figure:
        figure = Figure(figsize=(7.0, 0.9 + 0.28 * _rows(one)), layout="constrained")
        plot = getattr(one, "plot_timeline", None) or one.plot
        plot(figure.subplots())
        return figure

    sheet.write(draw, name, PICTURES, ("svg",))
    what = "Times of the schedules" if hasattr(one, "plot") else "Timeline of the ranks"
    return f"![{what}]({os.path.relpath(PICTURES, page.parent)}/{name}.svg)"


def _rows(one: Any) -> int:
    return len(one.cases) if hasattr(one, "plot") else min(one.ranks, FEW)


def _outputs(block: Block) -> list[str]:
    """Returns what each command of a block prints; of several, below the command itself."""
    commands = [shlex.split(command, comments=True) for command in block.commands]
    outputs = [output(words) for words in commands]
    if sum(map(bool, outputs)) > 1:
        told = zip(block.commands, outputs, strict=True)
        return [f"$ {re.sub(' +', ' ', line)}\n{text}" for line, text in told if text]
    return outputs


def output(words: list[str]) -> str:
    """Returns what a command prints, 80 columns wide and not too long; "" for one left alone."""
    from ringloom.cli import main

    if words[0] != "ringloom" or words[1] in SILENT:
        return ""
    said = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": "80"}), contextlib.redirect_stdout(said):
        status = main(words[1:])
    assert status == 0, shlex.join(words)
    lines = [line.rstrip() for line in said.getvalue().rstrip().splitlines()]
    left = len(lines) - LINES
    return "\n".join(lines if left <= 1 else [*lines[:LINES], f"... {left} more lines"])
