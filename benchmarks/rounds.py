"""Rivals timed in rounds: everyone once per round, each round in an order of its own.

    medians(run, rivals, rounds)    {rival: (seconds on the wall, seconds of processors)}

What runs leaves traces for what runs next: threads that still spin, caches, memory to give back. A
drawn order spreads these over all, and draws the same each time.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

Rival = TypeVar("Rival")
Times = tuple[float, float]  # on the wall, of the processors


def timed(run: Callable[[], object]) -> Times:
    """Seconds on the wall and of this process, all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def medians(
    run: Callable[[Rival], Times], rivals: Iterable[Rival], rounds: int
) -> dict[Rival, Times]:
    """Medians over `rounds` after one that does not count."""
    taken: dict[Rival, list[Times]] = {rival: [] for rival in rivals}
    for rival in taken:
        run(rival)
    draw = random.Random(0)
    for _ in range(rounds):
        for rival in draw.sample(list(taken), len(taken)):
            taken[rival].append(run(rival))
    return {
        rival: (statistics.median(a for a, _ in times), statistics.median(b for _, b in times))
        for rival, times in taken.items()
    }
