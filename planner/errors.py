"""The exceptions of the project; their texts carry the numbers and are tested."""

from collections.abc import Iterable
from difflib import get_close_matches


class RingloomError(ValueError):
    """Bad input of any kind: a plan, a file, a table of numbers, hardware, an address."""


class PlanError(RingloomError):
    """A plan, mask, partition or workload that cannot mean anything."""


class Reasons(PlanError):
    """A PlanError for several reasons, each on a line of its own."""


def unknown(what: str, value: object, known: Iterable[str], how: str = "choose one of") -> str:
    """Returns what to say of a name that is not known: the one most like it, and all there are."""
    names, written = list(known), str(value)[:200]
    near = get_close_matches(written, names, 1)
    like = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {written!r}: {like}{how} {', '.join(names)}"
