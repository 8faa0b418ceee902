"""parse(text)   parses a mask as written on the command line and in plan files.

    mask ::= both ("|" both)*
    both ::= term ("&" term)*
    term ::= "(" mask ")" | word
    word ::= NAME | NAME:TEXT | NAME@FILE        see the `forms` of each mask

Put a file name with spaces or operators in double quotes: documents@"my file".
"""

import re
from pathlib import Path

from ringloom.planner.disk import read
from ringloom.planner.errors import PlanError, RingloomError, brief, nearest
from ringloom.planner.masks.mask import MASKS, And, Mask, Or

PAIRS = {pair.sign: pair for pair in (And, Or)}
LARGEST_FILE = 1 << 24  # bytes: a million lengths, or a grid of 2**22 cells as JSON
MOST_WORDS, MOST_NESTED = 500, 50
SINKS = "sinks are not a mask: use --sinks, or Workload(..., sinks=True)"
REFUSED = {
    "dropout": "random results cannot be verified: train without it, as most models do",
    "alibi": "it adds a bias to the scores: use rotary positions or a window, which are exact here",
    "softcap": "it changes the scores: normalise queries and keys instead, as Gemma 3 does",
    "sink": SINKS,
    "sinks": SINKS,
}


def parse(text: str) -> Mask:
    """Returns the mask that a text describes; `&` binds before `|`.

    Raises PlanError with the offending word, and RingloomError for a file that cannot be read.
    """
    if len(text) > LARGEST_FILE:
        raise PlanError(f"a mask of {len(text)} characters is too long: at most {LARGEST_FILE}")
    words = re.findall(r'[()&|]|(?:,\s*|"[^"]*"|[^()&|\s"])+|"', text)
    if len(words) > MOST_WORDS or words.count("(") > MOST_NESTED:
        raise PlanError(
            f"a mask of {len(words)} words with {words.count('(')} parentheses is too long: "
            f"at most {MOST_WORDS} and {MOST_NESTED}"
        )
    words.reverse()
    mask = _joined(words)
    if words:
        raise PlanError(
            f"{brief(words[-1])} is unexpected after {brief(str(mask))}; join masks with & or |"
        )
    return mask


def forms() -> str:
    """Returns the forms of all masks, single words first."""
    every = dict.fromkeys(form for mask in MASKS.values() for form in mask.forms)
    return ", ".join(sorted(every, key=lambda form: not form.isidentifier()))


def _joined(words: list[str], binds: int = 0) -> Mask:
    """Parses masks joined by operators that bind tighter than `binds`."""
    mask = _term(words)
    while words and words[-1] in PAIRS and PAIRS[words[-1]].binds > binds:
        pair = PAIRS[words.pop()]
        mask = pair(mask, _joined(words, pair.binds))
    return mask


def _term(words: list[str]) -> Mask:
    if not words:
        raise PlanError(f"a mask is missing at the end; masks: {forms()}")
    word = words.pop()
    if word == "(":
        mask = _joined(words)
        if not words or words.pop() != ")":
            raise PlanError("a parenthesis is not closed")
        return mask
    if word == ")" or word in PAIRS:
        raise PlanError(f"a mask is missing before {word!r}; masks: {forms()}")
    return _word(word)


def _word(word: str) -> Mask:
    """Parses one mask with the class that its start names."""
    name, sign, rest = re.split("([:@]|$)", word, maxsplit=1)
    if name in REFUSED:
        raise PlanError(f"not expressible: {name} ({REFUSED[name]})")
    if (mask := MASKS.get(name + sign)) is None:
        near = nearest(word, forms().split(", "))
        like = f"did you mean {near}? " if near else ""
        raise PlanError(f"{brief(word)} is not a mask; {like}masks: {forms()}; join with & or |")
    try:
        return mask.parse_file(_read(rest)) if sign == "@" else mask.parse(rest)
    except RingloomError as error:
        raise type(error)(f"{brief(word)}: {error}") from None


def _read(name: str) -> str:
    """Returns the text of a file; raises RingloomError if it cannot be read or is too large."""
    path = Path(name.replace('"', ""))
    return read(path, bytes.decode, "cannot be read", LARGEST_FILE)
