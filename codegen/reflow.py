"""reflow(lines)   lines that are too long, broken as the formatter of Python files breaks them.

x = f(a, b)        -->  x = f(          what the last bracket holds on a line of its own,
                            a, b        or one line for each part of it
                        )
x = a if b else c  -->  x = (           where no bracket ends the line
                            a if b else c
                        )
"""

import re
from collections.abc import Iterable, Iterator

WIDTH = 100
START = re.compile(r"return |[^=]* = ")  # of a statement whose value may stand in brackets
OPENING, CLOSING = "([{", ")]}"
COMMA = r", (?!(?:(?!lambda)[\w=, ])*: )"  # but for those of a lambda
CHOICE, SOURCE = r" (?=if |else )", r" (?=for )"  # where an expression may be broken
EITHER = r" (?=\| )"


def reflow(lines: Iterable[str]) -> list[str]:
    """Returns lines of at most 100 characters, as far as brackets allow."""
    return [short for line in lines for short in _broken(line)]


def _broken(line: str) -> Iterator[str]:
    text = line.lstrip(" ")
    indent = " " * (len(line) - len(text))
    if len(line) <= WIDTH or text.startswith(("#", '"""')):
        yield line
        return
    tail = text[-1] * text.endswith((",", ":"))
    text = text.removesuffix(tail)
    start, opened = START.match(text), _last_bracket(text)
    if not start and len(parts := _cut(text, EITHER)) > 1:
        yield from (indent + part for part in [*parts[:-1], parts[-1] + tail])
        return
    if start and (opened is None or len(_cut(text[start.end() :], f"{COMMA}|{CHOICE}")) > 1):
        head, inside, tail = f"{start[0]}(", text[start.end() :], f"){tail}"
    elif opened is not None:
        head, inside, tail = text[: opened + 1], text[opened + 1 : -1], text[-1] + tail
    else:
        yield line
        return
    parts = _parts(inside)
    if text[-1] not in CLOSING and len(parts) == 1:
        parts = [inside]  # a comma behind it would make a tuple of it
    called = re.search(r"[\w)\]]$", head[:-1]) or not parts[0].endswith(",")
    if called and len(indent + inside) + 4 <= WIDTH:
        parts = [inside]
    yield indent + head
    for part in parts:
        yield from _broken(f"{indent}    {part}")
    yield indent + tail


def _parts(text: str) -> list[str]:
    """The parts of what stands in brackets, one if it can only be broken further in."""
    if len(_cut(text, SOURCE)) > 1:
        return _cut(text, f"{SOURCE}|{CHOICE}")
    if len(parts := _cut(text, COMMA)) > 1:
        return [f"{part.removesuffix(',')}," for part in parts]
    return parts if len(parts := _cut(text, CHOICE)) > 1 else [f"{text},"]


def _last_bracket(text: str) -> int | None:
    """The place of the bracket that the last character closes."""
    depth = 0
    for place in reversed(range(len(text))):
        depth += (text[place] in CLOSING) - (text[place] in OPENING)
        if not depth:
            return place if text[place] in OPENING else None
    return None


def _cut(text: str, where: str) -> list[str]:
    """Text cut wherever a pattern is in no bracket."""
    parts, begin = list[str](), 0
    for match in re.finditer(where, text):
        before = text[: match.start()]
        depth = sum(map(before.count, OPENING)) - sum(map(before.count, CLOSING))
        if not depth and begin <= match.start():
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [*parts, text[begin:]]


def numbers(name: str, values: Iterable[object]) -> list[str]:
    """Returns the assignment of a tuple."""
    line = f"{name} = ({', '.join(map(str, values))})"
    if len(line) <= WIDTH:
        return [line]
    return [f"{name} = (", *filled(map(str, values)), ")  # fmt: skip"]


def filled(words: Iterable[str]) -> Iterator[str]:
    """Yields words with a comma behind each, on as few lines as fit."""
    line = "   "
    for word in words:
        if len(line) + len(word) + 2 > WIDTH:
            yield line
            line = "   "
        line += f" {word},"
    yield line
