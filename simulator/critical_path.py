"""The critical path of a plan: the chain of work and messages that leaves no gap.

From the last thing that ends, back in time: whatever ended when it began was what it waited for,
be it earlier work of the rank, a message with its blocks, or another message in the same stream.

    rank 6 attends q 6 x kv 3     rank 7 waits for KV 3 over link 6-7     rank 7 attends q 7 x kv 3
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.timeline import Entry, Timeline, entries

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

    def as_row(self) -> dict[str, str | int | float | None]:
        """Returns plain values for JSON."""
        place = {"kind": self.kind, "rank": self.rank, "step": self.step, "link": self.link or None}
        return {**place, "start_s": self.start, "end_s": self.end, "words": self.words}


def critical_path(timeline: Timeline) -> tuple[Leg, ...]:
    """Return the chain that ends last, by time; raises RingloomError where rows were not kept."""
    return tuple(reversed(list(Chain(timeline).back())))


class Chain:
    """All entries of a timeline by the rank and the time at which they ended."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        every = entries(timeline)
        self._entries = [e for e in every if e.kind == "message" or e.end > e.start]
        ends = dict[tuple[str, int], list[tuple[float, int]]]()
        for number, entry in enumerate(self._entries):
            if entry.kind != "message":
                ends.setdefault(("work", entry.dst), []).append((entry.end, number))
                continue
            ends.setdefault(("to", entry.dst), []).append((entry.arrival, number))
            ends.setdefault(("from", entry.src), []).append((entry.arrival, number))
            ends.setdefault(("out", entry.src), []).append((entry.end, number))
            ends.setdefault(("in", entry.dst), []).append((entry.end, number))
        self._ends = {key: sorted(times) for key, times in ends.items()}
        self._seen = set[int]()

    def back(self) -> Iterator[Leg]:
        """Yield the path from its end."""
        if not self._entries:
            yield from self._prologue(int(np.argmax(self._timeline.finish)), self._timeline.end)
            return
        number = max(range(len(self._entries)), key=lambda n: (self._entries[n].arrival, -n))
        until: float = self._entries[number].arrival
        while number >= 0:
            entry = self._entries[number]
            self._seen.add(number)
            yield _leg(entry, until)
            until = entry.start
            number = self._before(entry)
        rank = entry.src if entry.kind == "message" else entry.dst
        yield from self._prologue(rank, until)

    def _before(self, entry: Entry) -> int:
        """Return the entry that ended when this one began; -1 for the beginning."""
        at = entry.start
        if entry.kind == "message":
            keys = [("work", entry.src), ("to", entry.src), ("out", entry.src), ("in", entry.dst)]
            keys += [("work", entry.dst), ("out", entry.dst), ("to", entry.dst)]
        else:
            keys = [("work", entry.dst), ("to", entry.dst), ("from", entry.dst)]
        for key in keys:
            if (number := self._ended(key, at)) >= 0:
                return number
        return -1

    def _ended(self, key: tuple[str, int], at: float) -> int:
        ends, near = self._ends.get(key, []), NEAR * at
        place = bisect_left(ends, (at - near, -1))
        for time, number in ends[place:]:
            if time > at + near:
                return -1
            if number not in self._seen and self._entries[number].start <= at:
                return number
        return -1

    def _prologue(self, rank: int, until: float) -> Iterator[Leg]:
        if until > 0:
            yield Leg("prologue", rank, 0, "rows of dO * O", 0.0, until)


def _leg(entry: Entry, until: float) -> Leg:
    """Return an entry as a part of the path."""
    link = f"{entry.src}-{entry.dst}" if entry.kind == "message" else ""
    kind: Kind = "merge" if entry.kind == "add" else entry.kind
    return Leg(kind, entry.dst, entry.step, entry.name, entry.start, until, link)
