"""The critical path of a plan: a chain of work and messages without gaps.

The path is traced backwards from the last event. Each entry waited for the entry that ended when it
started: earlier work of the rank, a message with its blocks, or a message in the same stream.

    rank 6 attends q 6 x kv 3     rank 7 waits for KV 3 over link 6-7     rank 7 attends q 7 x kv 3
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ringloom.simulator.timeline import Entry, Timeline, entries

Kind = Literal["attend", "merge", "unpack", "message", "prologue"]
VERBS = {
    "attend": "attends",
    "merge": "merges",
    "unpack": "unpacks",
    "message": "waits for",
    "prologue": "sums",
}
NEAR = 1e-9  # relative difference below which two times are equal


@dataclass(frozen=True, slots=True)
class Leg:
    """One part of the critical path, in seconds; it starts when the previous part ends."""

    kind: Kind
    rank: int  # the rank that works, or that waits for the message
    step: int
    name: str  # "q 7 x kv 3", "KV 3"
    start: float
    end: float
    link: str = ""  # of a message: "6-7"

    @property
    def words(self) -> str:
        """The leg as a phrase: rank 7 waits for KV 3 over link 6-7."""
        over = f" over link {self.link}" if self.link else ""
        return f"rank {self.rank} {VERBS[self.kind]} {self.name}{over}"

    def as_row(self) -> dict[str, str | int | float | None]:
        """Returns plain values for JSON."""
        place = {"kind": self.kind, "rank": self.rank, "step": self.step, "link": self.link or None}
        return {**place, "start_s": self.start, "end_s": self.end, "words": self.words}


def critical_path(timeline: Timeline, begin: float = 0.0) -> tuple[Leg, ...]:
    """Returns the critical path in chronological order, for a pass that starts at `begin` seconds.

    Raises RingloomError if rows were not kept.
    """
    legs = reversed(list(_back(timeline)))
    return tuple(replace(leg, start=leg.start + begin, end=leg.end + begin) for leg in legs)


def _back(timeline: Timeline) -> Iterator[Leg]:
    """Yields the legs of the path, last one first."""
    events = [e for e in entries(timeline) if e.kind == "message" or e.end > e.start]
    ends, seen = _ends(events), set[int]()
    ranks: Sequence[int] = range(timeline.plan.ranks)

    def before(entry: Entry) -> int:
        """Returns the number of the entry that ended when `entry` started; -1 if there is none."""
        near = NEAR * entry.start
        for key in _awaited(entry):
            times = ends.get(key, [])
            for time, number in times[bisect_left(times, (entry.start - near, -1)) :]:
                if time > entry.start + near:
                    break
                if number not in seen and events[number].start <= entry.start:
                    return number
        return -1

    until, last = timeline.end, (1 - NEAR) * timeline.end
    number = next((n for n, entry in enumerate(events) if entry.arrival >= last), -1)
    while number >= 0:
        entry = events[number]
        seen.add(number)
        link = f"{entry.src}-{entry.dst}" if entry.kind == "message" else ""
        kind: Kind = "merge" if entry.kind == "add" else entry.kind
        yield Leg(kind, entry.dst, entry.step, entry.name, entry.start, until, link)
        ranks, until = (entry.src, entry.dst), entry.start
        number = before(entry)
    if until > 0:
        starts = timeline.begin[0] if timeline.plan.steps else timeline.finish
        rank = min(ranks, key=lambda rank: abs(starts[rank] - until))
        yield Leg("prologue", rank, 0, "rows of dO * O", 0.0, until)


def _ends(events: list[Entry]) -> dict[tuple[str, int], list[tuple[float, int]]]:
    """Returns the sorted end times, with entry numbers, of each rank's work and messages."""
    ends = defaultdict[tuple[str, int], list[tuple[float, int]]](list)
    for number, entry in enumerate(events):
        if entry.kind != "message":
            ends["work", entry.dst].append((entry.end, number))
            continue
        ends["to", entry.dst].append((entry.arrival, number))
        ends["from", entry.src].append((entry.arrival, number))
        ends["out", entry.src].append((entry.end, number))
    return {key: sorted(times) for key, times in ends.items()}


def _awaited(entry: Entry) -> list[tuple[str, int]]:
    """Returns the keys in `_ends` of what an entry may have waited for, likeliest first."""
    src, dst = entry.src, entry.dst
    if entry.kind != "message":
        return [("work", dst), ("to", dst), ("from", dst)]
    own = [("work", src), ("to", src), ("from", src)]
    return [*own, ("to", dst), ("work", dst), ("out", dst), ("from", dst)]
