"""Orders the candidates of one pass, or the pairs of two passes, by total time."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.search import Candidate
from ringloom.planner.verify import verify_pair

PAIRED = 5  # number of best plans of a pass for which the other pass is also tried


def fit(pair: Sequence[Candidate]) -> bool:
    """Returns True for one candidate, and for a pair whose backward plan fits the forward plan."""
    if len(pair) == 1:
        return True
    forward, backward = map(plan_of, pair)
    if forward.partition != backward.partition:  # tokens cannot move between the passes
        return False
    try:
        verify_pair(forward, backward)
    except PlanError:
        return False
    return True


def by_sum(tried: Sequence[list[Candidate]]) -> Iterator[list[Candidate]]:
    """Yields the scored candidates of one pass, or all pairs of two passes, by total time."""
    scored = [fastest(candidates, None) for candidates in tried]
    sums = np.zeros(())  # [forward, backward]
    for candidates in scored:
        sums = np.add.outer(sums, [time_of(x) for x in candidates])
    for position in np.argsort(sums, axis=None, kind="stable").tolist():
        indices = np.unravel_index(position, sums.shape)
        yield [candidates[i] for candidates, i in zip(scored, indices, strict=True)]


def fastest(tried: Sequence[Candidate], limit: int | None = PAIRED) -> list[Candidate]:
    """Returns at most `limit` scored candidates, the fastest first."""
    return sorted((x for x in tried if x.score), key=time_of)[:limit]


def time_of(candidate: Candidate) -> float:
    return candidate.score.seconds if candidate.score else math.inf


def plan_of(candidate: Candidate) -> Plan:
    assert candidate.plan is not None
    return candidate.plan
