"""folded(lines)   lines that repeat, but for numbers that count up, as a loop that Python unrolls.

a = f(a, 1)  -->  for n in range(1, 4):
a = f(a, 2)           a = f(a, n)
a = f(a, 3)
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from codegen.text import affine

NUMBER = re.compile(r"(\b\d+\b)")
LEAST, SAVED = 3, 4  # times that lines repeat, and lines that a loop saves


def folded(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a function, in which those that repeat are loops."""
    at = 0
    while at < len(lines):
        made = [_loop(lines[at:], size) for size in range(1, (len(lines) - at) // LEAST + 1)]
        saved, size, loop = max(made, default=(0, 0, []))
        if saved < SAVED:
            loop, size = [lines[at]], 1
        yield from loop
        at += size


def _loop(lines: Sequence[str], size: int) -> tuple[int, int, list[str]]:
    """A loop that begins with a block of lines: those that it saves, those that it stands for."""
    first, block = _numbered(lines[:size], lines[size : 2 * size])
    if not block:
        return 0, 0, []
    times = 0
    while lines[times * size :][:size] == block(partial(_sum, first + times)):
        times += 1
    if times < LEAST:
        return 0, 0, []
    body = [f"    {line}" for line in block(partial(_sum, "n"))]
    head = f"    for n in range({first}, {first + times}):"
    return (times - 1) * size - 1, times * size, [head, *body]


def _sum(start: int | str, offset: int) -> str:
    return str(start + offset) if isinstance(start, int) else affine([(1, start)], offset)


def _numbered(
    block: Sequence[str], after: Sequence[str]
) -> tuple[int, Callable[[Callable[[int], str]], list[str]] | None]:
    """A block as a function of a number; its own one, and with the next one it is what follows.

    None if there is none, or if some of the lines are no statements of one line.
    """
    words, others = (NUMBER.split("\n".join(x)) for x in (block, after))
    up = [i for i, (a, b) in enumerate(zip(words, others, strict=False)) if a != b]
    simple = all(re.match(r"    [^\s#]", line) and not line.endswith(":") for line in block)
    if not up or not simple or re.search(r"\bn\b", " ".join(block)) or any(i % 2 == 0 for i in up):
        return 0, None
    first = int(words[up[0]])

    def text(said: Callable[[int], str]) -> list[str]:
        made = [said(int(x) - first) if i in up else x for i, x in enumerate(words)]
        return "".join(made).split("\n")

    return first, text
