"""Run: the numbers, times and memory that predictions and recorded runs have in common."""

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.memory import Memory
from simulator.timeline import Timeline


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """The run of one pass, or of a forward and a backward pass in turn, in seconds and bytes.

    Of a pair, `passes` holds both runs; a single pass has its `timeline` and its `memory` instead,
    where they were kept.
    """

    name: str
    hardware: str
    ranks: int
    makespan: float
    messages: int
    timeline: Timeline | None = None
    memory: Memory | None = None
    passes: tuple["Run", ...] = ()

    def in_turn(self) -> Iterator[tuple["Run", float]]:
        """Yields each pass, and the time at which it begins."""
        begin = 0.0
        for one in self.passes or (self,):
            yield one, begin
            begin += one.makespan
