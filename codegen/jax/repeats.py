"""folded(lines)   lines that repeat, but for numbers that count up, as a loop that Python unrolls.

a = f(a, 1)  -->  for n in range(1, 4):
a = f(a, 2)           a = f(a, n)
a = f(a, 3)
"""

import re
from collections.abc import Iterator, Sequence

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
    block = "\n".join(lines[:size])
    words, others = NUMBER.split(block), NUMBER.split("\n".join(lines[size : 2 * size]))
    up = [i for i, (a, b) in enumerate(zip(words, others, strict=False)) if a != b]
    simple = all(re.match(r"    [^\s#]", line) and line[-1] != ":" for line in lines[:size])
    if not up or not simple or any(i % 2 == 0 for i in up) or re.search(r"\bn\b", block):
        return 0, 0, []
    first, times = int(words[up[0]]), 0

    def at(n: int | str) -> list[str]:
        made = [_sum(n, int(x) - first) if i in up else x for i, x in enumerate(words)]
        return "".join(made).split("\n")

    while lines[times * size :][:size] == at(first + times):
        times += 1
    loop = [f"    for n in range({first}, {first + times}):", *(f"    {x}" for x in at("n"))]
    return ((times - 1) * size - 1, times * size, loop) if times >= LEAST else (0, 0, [])


def _sum(start: int | str, offset: int) -> str:
    return str(start + offset) if isinstance(start, int) else affine([(1, start)], offset)
