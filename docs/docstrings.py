"""Converts docstrings, plain text with `names` and drawings, for Sphinx.

A paragraph with columns or arrows is a drawing and keeps its spaces. All others are prose, in which
`x` is code.
"""

import re
from itertools import groupby

DRAWING = re.compile(r"\S {2,}\S|-->")
DOCTEST = re.compile(r"\s*>>>")


def as_rst(lines: list[str]) -> list[str]:
    """Returns the lines of a docstring as reStructuredText."""
    text = list[str]()
    for blank, paragraph in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            text += [*_paragraph(list(paragraph)), ""]
    return text


def _paragraph(lines: list[str]) -> list[str]:
    if DOCTEST.match(lines[0]):
        return lines
    if any(DRAWING.search(line) for line in lines):
        return ["::", "", *(f"    {line}" for line in lines)]
    return [re.sub(r"`([^`]+)`", r"``\1``", _escape(line)) for line in lines]


def _escape(line: str) -> str:
    """Escapes stars, bars and trailing underscores outside code."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([*|])|(_)(?=\W|$)", r"\\\1\2", part) for part in parts[::2]]
    return "`".join(parts)
