"""Which of many combinations a test tries by day, and which at night."""

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

NIGHTLY = os.environ.get("RINGLOOM_PROFILE") == "nightly"


def square(*axes: Sequence[Any], every: int) -> list[tuple[Any, ...]]:
    """Some combinations of the values of axes, as in a Latin square; all of them at night.

    Of each axis, a combination and the next one with the same other values are `every` places
    apart: with `every` values on an axis, any combination of the others occurs once.
    """
    places = product(*(range(len(axis)) for axis in axes))
    return [
        tuple(axis[n] for axis, n in zip(axes, at, strict=True))
        for at in places
        if NIGHTLY or sum(at) % every == 0
    ]
