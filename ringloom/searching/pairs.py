"""Candidates of one pass, or fitting pairs of two passes, in order of total time."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.search import Tried
from ringloom.planner.verify import verify_pair

PAIRED = 5  # number of best plans of a pass whose other pass is tried too


def fit(pair: Sequence[Tried]) -> bool:
    """Returns True for one candidate, and for a pair whose backward plan fits the forward plan."""
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
    """Yields the scored candidates of one pass, or all pairs of two, in order of total time.

    Total times form a table [forward, backward], which is sorted.
    """
    scored = [fastest(tried, None) for tried in every]
    sums = np.zeros(())
    for tried in scored:
        sums = np.add.outer(sums, [time_of(x) for x in tried])
    for at in np.argsort(sums, axis=None, kind="stable").tolist():
        places = np.unravel_index(at, sums.shape)
        yield [tried[place] for tried, place in zip(scored, places, strict=True)]


def fastest(tried: Sequence[Tried], most: int | None = PAIRED) -> list[Tried]:
    """Returns at most `most` scored candidates, the fastest first."""
    return sorted((x for x in tried if x.score), key=time_of)[:most]


def time_of(one: Tried) -> float:
    return one.score.seconds if one.score else math.inf


def plan_of(one: Tried) -> Plan:
    assert one.plan is not None
    return one.plan
