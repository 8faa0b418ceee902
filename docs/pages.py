"""A page's code: its fenced blocks in order, and what it means to follow them.

page   ::= (text | block)*
block  ::= ```python       runs, after all before it, in one namespace per page
         | ```python       whose first line is `# NAME.EXT` is a file, as are toml and json blocks
         | ```console      lines that begin with `$ ` are commands, the others what they print
         | ```text         right below one of these: what it prints, to the letter
         | ```{directive} what Sphinx makes of it
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
    """A fenced block: its language, its text, the line of the page that its text begins on.

    `prints` is the text block right below it, None without one.
    """

    language: str
    text: str
    line: int
    prints: str | None = None

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if its first line says that it is one."""
        named = FILE.match(self.text.partition("\n")[0]) if self.language != "console" else None
        return named[1] if named else None

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, continuation lines joined."""
        return [command[1].replace("\\\n", " ") for command in COMMAND.finditer(self.text)]

    @property
    def shown(self) -> str:
        """Return the output shown beside a console block's commands, or right below the block."""
        return COMMAND.sub("", self.text) + (self.prints or "")


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page; a text block that shows output comes with the block that prints it."""
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
    """True if nothing stands between a text block and the code above it."""
    return bool(
        above
        and fence[1] == "text"
        and above[1] in ("python", "console")
        and not text[above.end() : fence.start()].strip()
    )


def execute(
    block: Block, page: Path, scope: dict[str, Any], compiler: Callable[..., Any] = compile
) -> None:
    """Run a python block; AssertionError where it prints something else than the page shows."""
    said = io.StringIO()
    code = compiler("\n" * (block.line - 1) + block.text, str(page), "exec")  # its own lines
    with contextlib.redirect_stdout(said):
        exec(code, scope)
    if block.prints is not None and not same(said.getvalue(), block.prints):
        raise AssertionError(f"{page}:{block.line} prints\n{said.getvalue()}\nnot\n{block.prints}")


def same(printed: str, shown: str) -> bool:
    """True if two texts differ by spaces at the ends of lines at most."""
    return _bare(printed) == _bare(shown)


def _bare(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
