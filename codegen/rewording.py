"""reworded(text, changes)   the text of one kind of program where another says a few things anew.

Programs of different kinds share most of their text. What differs is told as old and new words; an
old word that is no longer there is an error, so the texts cannot drift apart unnoticed.
"""


def reworded(text: str, changes: dict[str, str]) -> str:
    """`text` with every old word of `changes` replaced; LookupError if one is not there."""
    for old, new in changes.items():
        if old not in text:
            raise LookupError(f"nothing to reword: no {old!r} in this text")
        text = text.replace(old, new)
    return text
