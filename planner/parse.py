"""Parses the text of a length, a mask or a schedule, as on the command line.

    length   ::= 4096 | 256k | 1M                        powers of two
    mask     ::= both ("|" both)*
    both     ::= term ("&" term)*
    term     ::= "(" mask ")" | word
    word     ::= full | causal | window:LEFT[,RIGHT] | prefix:N | global:N | documents@FILE
               | documents:N,N[/N,N] (lengths/q_lengths) | blocks:SIZE:0110/1001 | blocks@FILE
    schedule ::= NAME(":" KEY "=" VALUE)*

A file name with spaces or signs in it is put in double quotes: documents@"my file".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from planner.errors import PlanError, RingloomError
from planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Prefix, Window

LARGEST_FILE = 64 * 2**20
MOST_WORDS, MOST_NESTED = 500, 50
SUFFIX = {"": 1, "k": 2**10, "K": 2**10, "M": 2**20}
REFUSED = ("dropout", "alibi", "softcap", "sink", "sinks")
MASKS = (
    "full, causal, window:4096, window:128,128, prefix:N, documents:A,B, documents@FILE, "
    "global:N, blocks:SIZE:01/11, blocks@FILE"
)


def tokens(text: str) -> int:
    """Returns the number of `4096`, `256k` or `1M`; k and M are powers of two."""
    number = re.fullmatch(r"([0-9]{1,18})([kKM]?)", text.strip())
    if not number:
        raise PlanError(f"{_brief(text)} is not a number of tokens, such as 4096, 256k or 1M")
    return int(number[1]) * SUFFIX[number[2]]


def mask(text: str) -> Mask:
    """Returns the mask of a command-line text, `&` binding before `|`.

    Raises PlanError with the word that is not understood, RingloomError for a file that cannot be
    read.
    """
    words = re.findall(r'[()&|]|(?:,\s*|"[^"]*"|[^()&|\s"])+|"', text)
    if len(words) > MOST_WORDS or words.count("(") > MOST_NESTED:
        raise PlanError(
            f"a mask of {len(words)} words with {words.count('(')} parentheses is too long: "
            f"at most {MOST_WORDS} and {MOST_NESTED}"
        )
    words.reverse()
    parsed = _either(words)
    if words:
        raise PlanError(
            f"{_brief(words[-1])} is unexpected after {_brief(str(parsed))}; join by & or |"
        )
    return parsed


def schedule(text: str) -> tuple[str, dict[str, int | str]]:
    """Returns name and parameters of `striped`, `striped:grain=16`, `usp:ulysses=2:ring=4`."""
    name, *settings = text.strip().split(":")
    if not re.fullmatch(r"[\w.+-]+", name):
        raise PlanError(
            f"{_brief(text)} does not begin with a schedule's name, as in striped:grain=16"
        )
    parameters: dict[str, int | str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if not key.isidentifier() or not value:
            raise PlanError(
                f"{_brief(setting)} in {_brief(text)} is not a setting such as grain=16"
            )
        if key in parameters:
            raise PlanError(f"{key} is set twice in {_brief(text)}")
        parameters[key] = tokens(value) if re.fullmatch(r"[0-9]{1,18}[kKM]?", value) else value
    return name, parameters


def _either(words: list[str]) -> Mask:
    parsed = _both(words)
    while words and words[-1] == "|":
        words.pop()
        parsed = parsed | _both(words)
    return parsed


def _both(words: list[str]) -> Mask:
    parsed = _term(words)
    while words and words[-1] == "&":
        words.pop()
        parsed = parsed & _term(words)
    return parsed


def _term(words: list[str]) -> Mask:
    if not words:
        raise PlanError(f"a mask is missing at the end; masks: {MASKS}")
    word = words.pop()
    if word == "(":
        parsed = _either(words)
        if not words or words.pop() != ")":
            raise PlanError("a parenthesis is not closed")
        return parsed
    if word in (")", "&", "|"):
        raise PlanError(f"a mask is missing before {word!r}; masks: {MASKS}")
    return _word(word)


def _word(word: str) -> Mask:
    """Returns the mask of one word; READERS is the table of words."""
    match = re.match(r"(\w*)(:|@|$)", word)
    name, sign = (match[1], match[2]) if match else ("", "")
    if name in REFUSED:
        raise PlanError(f"not expressible: {name} (a mask only says which query meets which key)")
    if name + sign not in READERS:
        raise PlanError(f"{_brief(word)} is not a mask; masks: {MASKS}")
    try:
        return READERS[name + sign](word[len(name + sign) :])
    except RingloomError as error:
        raise type(error)(f"{_brief(word)}: {error}") from None


def _window(text: str) -> Mask:
    sides = [None if side.strip() == "inf" else tokens(side) for side in text.split(",")]
    if len(sides) > 2:
        raise PlanError(f"a window has a left and a right side, not {len(sides)}")
    return Window(*sides)


def _documents(text: str) -> Mask:
    sides = [tuple(map(tokens, side.split(","))) for side in text.split("/")]
    if len(sides) > 2:
        raise PlanError(f"documents have lengths and query lengths, not {len(sides)} lists")
    return Documents(*sides)


def _documents_file(name: str) -> Mask:
    return Documents(tuple(map(tokens, _read(name).replace(",", " ").split())))


def _blocks(text: str) -> Mask:
    size, _, rows = text.partition(":")
    if not re.fullmatch(r"[01]+(/[01]+)*", rows):
        raise PlanError("inline blocks are SIZE:ROWS with rows of 0 and 1, such as 64:10/11")
    return Blocks(
        tuple(tuple(cell == "1" for cell in row) for row in rows.split("/")), tokens(size)
    )


def _blocks_file(name: str) -> Mask:
    text = _read(name)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.keys() != {"size", "grid"}:
        raise PlanError('expected JSON {"size": N, "grid": [[0, 1, ...], ...]}')
    return Blocks(content["grid"], content["size"])


def _read(name: str) -> str:
    """Returns the text of a file; raises RingloomError if it cannot be read or is over 64 MiB."""
    try:
        with open(name.replace('"', ""), "rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        text = raw.decode()
    except OSError as error:
        raise RingloomError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RingloomError(f"cannot be read: {error}") from None
    if len(raw) > LARGEST_FILE:
        raise RingloomError(f"is larger than {LARGEST_FILE} bytes")
    return text


def _plain(made: Callable[[], Mask]) -> Callable[[str], Mask]:
    return lambda _: made()


def _sized(made: Callable[[int], Mask]) -> Callable[[str], Mask]:
    return lambda text: made(tokens(text))


READERS: dict[str, Callable[[str], Mask]] = {
    "full": _plain(Full),
    "causal": _plain(Causal),
    "window:": _window,
    "prefix:": _sized(Prefix),
    "global:": _sized(Global),
    "documents:": _documents,
    "documents@": _documents_file,
    "blocks:": _blocks,
    "blocks@": _blocks_file,
}


def _brief(text: str) -> str:
    """The text quoted on one line, its middle left out when long."""
    return repr(text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}")
