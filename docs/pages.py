"""Reads the fenced code blocks of a page, and runs them.

page   ::= (text | block)*
block  ::= ```python       runs, in the order of the page, in one namespace per page
         | ```python       a file, if its first line is `# NAME.EXT`; so are toml and json blocks
         | ```console      lines that begin with `$ ` are commands, the others their output
         | ```text         directly below one of these: its exact output
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
STATUS = "; echo $?"  # behind a command whose exit status its page shows
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins.

    `prints` is the text block directly below it, or None.
    """

    language: str
    text: str
    line: int
    prints: str | None = None

    @property
    def file(self) -> str | None:
        """The name of the file, if the first line says that the block is one."""
        named = FILE.match(self.text.partition("\n")[0]) if self.language != "console" else None
        return named[1] if named else None

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, continuation lines joined."""
        return [command[1].replace("\\\n", " ") for command in COMMAND.finditer(self.text)]

    @property
    def shown(self) -> str:
        """The output shown among the commands of a console block, or directly below the block."""
        return COMMAND.sub("", self.text) + (self.prints or "")


def blocks(page: Path) -> Iterator[Block]:
    """Yields the blocks of a page; a block that prints includes the text block with its output."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    shown = [_shows_output(text, *pair) for pair in zip([None, *fences], fences, strict=False)]
    for number, fence in enumerate(fences):
        if shown[number]:
            continue
        below = number + 1 < len(fences) and shown[number + 1]
        prints = fences[number + 1][2] if below else None
        yield Block(fence[1], fence[2], text.count("\n", 0, fence.start(2)) + 1, prints)


def _shows_output(text: str, above: re.Match[str] | None, fence: re.Match[str]) -> bool:
    """Returns True if a text block directly follows code."""
    return bool(
        above
        and fence[1] == "text"
        and above[1] in ("python", "console")
        and not text[above.end() : fence.start()].strip()
    )


def execute(
    block: Block, page: Path, scope: dict[str, Any], compiler: Callable[..., Any] = compile
) -> None:
    """Runs a python block; raises AssertionError if its output differs from the page."""
    said = io.StringIO()
    code = compiler("\n" * (block.line - 1) + block.text, str(page), "exec")  # its own lines
    with contextlib.redirect_stdout(said):
        exec(code, scope)
    if block.prints is not None and not same(said.getvalue(), block.prints):
        raise AssertionError(f"{page}:{block.line} prints\n{said.getvalue()}\nnot\n{block.prints}")


def same(printed: str, shown: str) -> bool:
    """Returns True if two texts are equal, except for spaces at the ends of lines."""
    return _bare(printed) == _bare(shown)


def _bare(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
