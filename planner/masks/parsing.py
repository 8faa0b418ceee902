"""parse(text)   parses a mask of a command line or plan file.

    mask ::= both ("|" both)*
    both ::= term ("&" term)*
    term ::= "(" mask ")" | word
    word ::= NAME | NAME:TEXT | NAME@FILE        as in the `forms` of each mask

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
    """Parses a mask; `&` binds before `|`.

    Raises PlanError with the invalid word, and RingloomError for a file that cannot be read.
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
    mask = _parse_expression(words)
    if words:
        raise PlanError(
            f"{brief(words[-1])} is unexpected after {brief(str(mask))}; join masks with & or |"
        )
    return mask


def forms() -> str:
    """Lists the forms of all masks, single words first."""
    distinct = dict.fromkeys(form for mask in MASKS.values() for form in mask.forms)
    return ", ".join(sorted(distinct, key=lambda form: not form.isidentifier()))


def _parse_expression(words: list[str], precedence: int = 0) -> Mask:
    """Parses masks joined by operators that bind tighter than `precedence`."""
    mask = _parse_term(words)
    while words and words[-1] in PAIRS and PAIRS[words[-1]].precedence > precedence:
        pair = PAIRS[words.pop()]
        mask = pair(mask, _parse_expression(words, pair.precedence))
    return mask


def _parse_term(words: list[str]) -> Mask:
    if not words:
        raise PlanError(f"a mask is missing at the end; masks: {forms()}")
    word = words.pop()
    if word == "(":
        mask = _parse_expression(words)
        if not words or words.pop() != ")":
            raise PlanError("a parenthesis is not closed")
        return mask
    if word == ")" or word in PAIRS:
        raise PlanError(f"a mask is missing before {word!r}; masks: {forms()}")
    return _parse_word(word)


def _parse_word(word: str) -> Mask:
    """Parses a mask without operators."""
    name, sign, arguments = re.split("([:@]|$)", word, maxsplit=1)
    if name in REFUSED:
        raise PlanError(f"not expressible: {name} ({REFUSED[name]})")
    if (mask := MASKS.get(name + sign)) is None:
        closest = nearest(word, forms().split(", "))
        hint = f"did you mean {closest}? " if closest else ""
        raise PlanError(f"{brief(word)} is not a mask; {hint}masks: {forms()}; join with & or |")
    try:
        return mask.parse_file(_read(arguments)) if sign == "@" else mask.parse(arguments)
    except RingloomError as error:
        raise type(error)(f"{brief(word)}: {error}") from None


def _read(name: str) -> str:
    """Returns the text of a file; raises RingloomError if it cannot be read or is too large."""
    path = Path(name.replace('"', ""))
    return read(path, bytes.decode, "cannot be read", LARGEST_FILE)
