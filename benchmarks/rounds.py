"""Rivals timed in rounds: everyone once per round, each round in an order of its own.

    in_rounds(run, rivals, rounds)    {rival: [(seconds on the wall, seconds of processors)]}
    ratio(ours, theirs)               of two rivals: the medians over the rounds

What runs leaves traces for what runs next: threads that still spin, caches, memory to give back. A
drawn order spreads these over all, and draws the same each time.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from ringloom.cli.output import progress

Rival = TypeVar("Rival")
Times = tuple[float, float]  # on the wall, of the processors


def timed(run: Callable[[], object]) -> Times:
    """Seconds on the wall and of this process, all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def in_rounds(
    run: Callable[[Rival], Times], rivals: Iterable[Rival], rounds: int
) -> dict[Rival, list[Times]]:
    """The times of every rival, round by round, after one that does not count."""
    taken: dict[Rival, list[Times]] = {rival: [] for rival in rivals}
    for rival in taken:
        run(rival)
    draw = random.Random(0)
    for _ in progress(range(rounds), "timing"):
        for rival in draw.sample(list(taken), len(taken)):
            taken[rival].append(run(rival))
    return taken


def median(times: Iterable[Times]) -> Times:
    """The median on the wall and that of the processors."""
    wall, cpu = zip(*times, strict=True)
    return statistics.median(wall), statistics.median(cpu)


def ratio(ours: list[Times], theirs: list[Times]) -> Times:
    """The median of what each round says of ours over theirs: machines whose speed drifts are as
    slow for both within a round."""
    pairs = zip(ours, theirs, strict=True)
    return median((a / c, b / d) for (a, b), (c, d) in pairs)
