"""Why a plan takes as long as it does: the chain of work and messages that leaves no gap.

From the last thing that ends, back in time: whatever ended when it began was what it waited for,
be it earlier work of the rank, a message with its blocks, or another message in the same stream.

    rank 6 attends q 6 x kv 3     rank 7 waits for KV 3 over link 6-7     rank 7 attends q 7 x kv 3
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.errors import PlanError
from planner.ir import Attend
from simulator.timeline import Attended, Merged, Sent, Timeline, block_names, tile_names

Kind = Literal["attend", "merge", "message", "prologue"]
NEAR = 1e-9  # of a time: two events this close are one


@dataclass(frozen=True, slots=True)
class Leg:
    """One part of the critical path, in seconds; each begins when the one before ends."""

    kind: Kind
    rank: int  # that works, or waits for the message
    step: int
    name: str  # "q 7 x kv 3", "KV 3"
    start: float
    end: float
    link: str = ""  # of a message: "6-7"

    @property
    def words(self) -> str:
        """rank 7 waits for KV 3 over link 6-7"""
        match self.kind:
            case "message":
                return f"rank {self.rank} waits for {self.name} over link {self.link}"
            case "attend":
                return f"rank {self.rank} attends {self.name}"
            case "merge":
                return f"rank {self.rank} merges {self.name}"
            case "prologue":
                return f"rank {self.rank} sums {self.name}"


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that happened; `ends` are the times at which something else could begin."""

    kind: Kind
    step: int
    name: str
    src: int
    dst: int  # the rank itself for work
    start: float
    end: float
    arrival: float  # the end itself for work

    def leg(self, until: float) -> Leg:
        """This thing as a part of the path."""
        link = f"{self.src}-{self.dst}" if self.kind == "message" else ""
        return Leg(self.kind, self.dst, self.step, self.name, self.start, until, link)


def critical_path(timeline: Timeline) -> tuple[Leg, ...]:
    """The chain that ends last, in order of time; raises PlanError where rows were not kept."""
    if timeline.rows is None:
        raise PlanError(
            f"{timeline.plan.name}: the rows of this timeline were not kept;"
            " simulate with record=True"
        )
    return tuple(reversed(list(Chain(timeline).back())))


class Chain:
    """Everything that happened, by the rank and the time at which it ended."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._things = [t for rows in timeline.rows or () for t in _things(rows)]
        ends = dict[tuple[str, int], list[tuple[float, int]]]()
        for number, thing in enumerate(self._things):
            if thing.kind != "message":
                ends.setdefault(("work", thing.dst), []).append((thing.end, number))
                continue
            ends.setdefault(("to", thing.dst), []).append((thing.arrival, number))
            ends.setdefault(("from", thing.src), []).append((thing.arrival, number))
            ends.setdefault(("out", thing.src), []).append((thing.end, number))
            ends.setdefault(("in", thing.dst), []).append((thing.end, number))
        self._ends = {key: sorted(found) for key, found in ends.items()}
        self._seen = set[int]()

    def back(self) -> Iterator[Leg]:
        """The path from its end."""
        if not self._things:
            yield from self._prologue(int(np.argmax(self._timeline.finish)), self._timeline.end)
            return
        number = max(range(len(self._things)), key=lambda n: (self._things[n].arrival, -n))
        until: float = self._things[number].arrival
        while number >= 0:
            thing = self._things[number]
            self._seen.add(number)
            yield thing.leg(until)
            until = thing.start
            number = self._before(thing)
        yield from self._prologue(thing.src, until)

    def _before(self, thing: Thing) -> int:
        """What ended when this began; -1 for the beginning."""
        at = thing.start
        if thing.kind == "message":
            keys = [("work", thing.src), ("to", thing.src), ("out", thing.src), ("in", thing.dst)]
            keys += [("work", thing.dst), ("out", thing.dst), ("to", thing.dst)]
        else:
            keys = [("work", thing.dst), ("to", thing.dst), ("from", thing.dst)]
        for key in keys:
            if (found := self._ended(key, at)) >= 0:
                return found
        return -1

    def _ended(self, key: tuple[str, int], at: float) -> int:
        ends, near = self._ends.get(key, []), NEAR * at
        place = bisect_left(ends, (at - near, -1))
        for time, number in ends[place:]:
            if time > at + near:
                return -1
            if number not in self._seen and self._things[number].start <= at:
                return number
        return -1

    def _prologue(self, rank: int, until: float) -> Iterator[Leg]:
        if until > 0:
            yield Leg("prologue", rank, 0, "rows of dO * O", 0.0, until)


def _things(rows: Attended | Merged | Sent) -> Iterator[Thing]:
    """Every message, and all work that takes any time."""
    step, node, start, end = rows.step, rows.node, rows.start.tolist(), rows.end.tolist()
    if isinstance(rows, Sent):
        ends = rows.node.src.tolist(), rows.node.dst.tolist()
        columns = zip(block_names(rows.node), *ends, start, end, rows.arrival, strict=True)
        for name, src, dst, a, b, arrival in columns:
            yield Thing("message", step, name, src, dst, a, b, float(arrival))
        return
    kind: Kind = "attend" if isinstance(rows, Attended) else "merge"
    rank = node.rank if isinstance(node, Attend) else node.dst
    names = tile_names(node) if isinstance(node, Attend) else block_names(node)
    for name, r, a, b in zip(names, rank.tolist(), start, end, strict=True):
        if b > a:
            yield Thing(kind, step, name, r, r, a, b, b)
