"""Candidates of one pass, or of two that fit together, those of the least sum first."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.search import Tried
from ringloom.planner.verify import verify_pair

PAIRED = 5  # of the best plans of a pass, whose other passes are tried as well


def fit(pair: Sequence[Tried]) -> bool:
    """True for one candidate, and for two of which the backward plan takes what is left to it."""
    if len(pair) == 1:
        return True
    forward, backward = map(plan_of, pair)
    if forward.partition != backward.partition:  # nothing moves tokens between the passes
        return False
    try:
        verify_pair(forward, backward)
    except PlanError:
        return False
    return True


def by_sum(every: Sequence[list[Tried]]) -> Iterator[list[Tried]]:
    """Yields the scored candidates of one pass, or all pairs of two, those of the least sum first.

    They are sorted by sums that are made as a table: [forward, backward].
    """
    scored = [fastest(tried, None) for tried in every]
    sums = np.zeros(())
    for tried in scored:
        sums = np.add.outer(sums, [time_of(x) for x in tried])
    for at in np.argsort(sums, axis=None, kind="stable").tolist():
        places = np.unravel_index(at, sums.shape)
        yield [tried[place] for tried, place in zip(scored, places, strict=True)]


def fastest(tried: Sequence[Tried], most: int | None = PAIRED) -> list[Tried]:
    """Returns the scored candidates, the fastest first, at most so many."""
    return sorted((x for x in tried if x.score), key=time_of)[:most]


def time_of(one: Tried) -> float:
    return one.score.seconds if one.score else math.inf


def plan_of(one: Tried) -> Plan:
    assert one.plan is not None
    return one.plan
