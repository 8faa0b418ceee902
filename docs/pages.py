"""Reads the fenced code blocks of a page, and runs them.

page   ::= (text | block)*
block  ::= ```python       runs, in the order of the page, in one namespace per page
         | ```python       a file, if its first line is `# NAME.EXT`; so are toml and json blocks
         | ```console      lines that begin with `$ ` are commands, all others their output
         | ```text         directly below such a block: its exact output
         | ```{directive} a Sphinx directive
         | ```bash, ```py  needs a cluster, or never ends: shown and counted, never run
"""

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\S*)[^\n`]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"#+ ([\w/]+\.\w+)$")
STATUS = "; echo $?"  # follows a command whose exit status the page shows
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins.

    `output` is the text block directly below it, or None.
    """

    language: str
    text: str
    line: int
    output: str | None = None

    @property
    def file(self) -> str | None:
        """The name of the file, if the first line says that the block is a file."""
        match = FILE.match(self.text.partition("\n")[0]) if self.language != "console" else None
        return match[1] if match else None

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, continuation lines joined."""
        return [command[1].replace("\\\n", " ") for command in COMMAND.finditer(self.text)]

    @property
    def shown(self) -> str:
        """The output shown among the commands of a console block, or directly below the block."""
        return COMMAND.sub("", self.text) + (self.output or "")


def blocks(page: Path) -> Iterator[Block]:
    """Yields the blocks of a page; a block includes the text block with its output, if any."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    is_output = [_shows_output(text, *pair) for pair in zip([None, *fences], fences, strict=False)]
    for number, fence in enumerate(fences):
        if is_output[number]:
            continue
        has_output = number + 1 < len(fences) and is_output[number + 1]
        output = fences[number + 1][2] if has_output else None
        yield Block(fence[1], fence[2], text.count("\n", 0, fence.start(2)) + 1, output)


def _shows_output(text: str, previous: re.Match[str] | None, fence: re.Match[str]) -> bool:
    """Returns True if a text block directly follows code."""
    return bool(
        previous
        and fence[1] == "text"
        and previous[1] in ("python", "console")
        and not text[previous.end() : fence.start()].strip()
    )


def execute(
    block: Block, page: Path, scope: dict[str, Any], compiler: Callable[..., Any] = compile
) -> None:
    """Runs a python block; raises AssertionError if its output differs from the page."""
    stream = io.StringIO()
    code = compiler("\n" * (block.line - 1) + block.text, str(page), "exec")  # its own lines
    with contextlib.redirect_stdout(stream):
        exec(code, scope)
    if block.output is not None and not equal_texts(stream.getvalue(), block.output):
        raise AssertionError(
            f"{page}:{block.line} prints\n{stream.getvalue()}\nnot\n{block.output}"
        )


def equal_texts(printed: str, shown: str) -> bool:
    """Returns True if two texts are equal, except for spaces at the ends of lines."""
    return _strip_lines(printed) == _strip_lines(shown)


def _strip_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
