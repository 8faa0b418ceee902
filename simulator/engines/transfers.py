"""Messages in flight: ordered streams, shared links, and receive buffers.

stream    the messages that leave (or enter) a rank over one link; the rank handles them in plan
          order, one at a time, from start to arrival
message   starts when it is launched, its blocks are at its source, it is first in both its streams
          and its destination has a free slot; arrives one alpha of the path after its last byte
link      serves chunks in the order in which they reach it; a chunk enters the next link when its
          head has passed, and the next chunk starts when this head enters the last link

A message on links that are not shared takes bytes / bandwidth without being cut into chunks.
"""

import math

import numpy as np

from ringloom.simulator.engines.buffers import Buffers
from ringloom.simulator.engines.events import Action, Clock
from ringloom.simulator.engines.tasks import RankStep, Tasks
from ringloom.simulator.network.routes import Traffic
from ringloom.simulator.scenario import Scenario

MOST_CHUNKS = 32  # per message
NEVER = math.inf
Head = tuple[int, int, float, float]  # message, link of its route, ends on the previous and first


class Transfers:
    """Start, end and arrival of each message by number; `NEVER` until then."""

    def __init__(
        self,
        clock: Clock,
        rows: Tasks,
        traffic: Traffic,
        scenario: Scenario,
        wake: Action,  # called with a rank when a message for which it waits arrives
        buffers: Buffers | None,
    ) -> None:
        self._clock, self._rows, self._chunk = clock, rows, scenario.chunk
        self._wake, self._buffers, self._share = wake, buffers, scenario.share
        count = len(rows.src)
        self.start, self.end, self.arrived = ([NEVER] * count for _ in range(3))
        self.waiting = [list[int]() for _ in range(count)]  # ranks that wait for each message
        self._without_slot = dict[int, list[int]]()
        self._set_links(traffic)
        self._set_order(traffic, launches=2 if scenario.late or not scenario.overlap else 1)

    def _set_links(self, traffic: Traffic) -> None:
        self._bandwidth = traffic.routes.bandwidth
        self._free = [0.0] * len(self._bandwidth)  # the time when each link is free
        ends = (np.array(e, np.int32) for e in (self._rows.src, self._rows.dst))
        self._pair: list[int] = traffic.pair(*ends).tolist()
        self._paths = traffic.paths
        self._alone = [traffic.shared.isdisjoint(path.links) for path in traffic.paths]
        self._left, self._piece = dict[int, int](), dict[int, float]()

    def _set_order(self, traffic: Traffic, launches: int) -> None:
        """Counts the events for which each message waits; lists the messages that it releases."""
        count = len(self._pair)
        self._blocked = [launches + len(needs) for needs in self._rows.needs]
        self._feeds = [list[int]() for _ in range(count)]
        for message, needs in enumerate(self._rows.needs):
            for need in needs:
                self._feeds[need].append(message)
        self._after = self._queue(traffic.out.tolist()), self._queue(traffic.into.tolist())

    def _queue(self, streams: list[int]) -> list[int]:
        """Returns the next message in the stream of each message, or -1; `streams` by pair."""
        after, last = [-1] * len(self._pair), dict[int, int]()
        for message, pair in enumerate(self._pair):
            stream = streams[pair]
            if stream in last:
                after[last[stream]] = message
                self._blocked[message] += 1
            last[stream] = message
        return after

    def count_down(self, message: int) -> None:
        """Counts one event for which a message waits; tries to start the message after the last."""
        self._blocked[message] -= 1
        if not self._blocked[message]:
            self._try(message)

    def _try(self, message: int) -> None:
        if self._buffers and not self._buffers.take(message):
            self._without_slot.setdefault(self._rows.dst[message], []).append(message)
        else:
            self._begin(message)

    def try_waiting(self, rank: int) -> None:
        """Tries to start the messages that wait for slots on a rank."""
        for message in self._without_slot.pop(rank, ()):
            self._try(message)

    def first_without_slot(self) -> int:
        """Returns the first message that only waits for a free slot."""
        return min(m for messages in self._without_slot.values() for m in messages)

    def _begin(self, message: int) -> None:
        now, pair = self._clock.now, self._pair[message]
        self.start[message] = now
        size = self._rows.wire[message]
        if self._alone[pair]:
            self._clock.at(now + size / self._paths[pair].bandwidth, self._through, message)
            return
        pieces = max(1, min(MOST_CHUNKS, math.ceil(size / self._chunk)))
        self._left[message], self._piece[message] = pieces, size / pieces
        self._cross((message, 0, 0.0, 0.0))

    def _cross(self, head: Head) -> None:
        """Moves the head of a chunk over the links of its route, each as soon as it is free."""
        message, place, before, first = head
        links, now, free = self._paths[self._pair[message]].links, self._clock.now, self._free
        piece = self._piece[message]
        while True:
            link = links[place]
            start = free[link] if free[link] > now else now
            end = start + piece / self._bandwidth[link]
            free[link] = before = end if end > before else before
            if not place:
                first = before
            place += 1
            if place == len(links):
                break
            if start > now:
                self._clock.at(start, self._cross, (message, place, before, first))
                return
        self._left[message] -= 1
        if self._left[message]:
            self._clock.at(max(first, start), self._cross, (message, 0, 0.0, 0.0))
        else:
            self._clock.at(before, self._through, message)

    def _through(self, message: int) -> None:
        """Ends a message whose last byte has left the last link; frees buffers at its source."""
        now = self.end[message] = self._clock.now
        if self._buffers:
            self._buffers.read(self._rows.needs[message])
            self.try_waiting(self._rows.src[message])
        alpha = self._paths[self._pair[message]].alpha
        if alpha:
            self._clock.at(now + alpha, self._arrive, message)
        else:
            self._arrive(message)

    def lost_compute(self, step: RankStep) -> float:
        """Returns the seconds of compute that a rank loses to its messages of a step."""
        seconds = 0.0
        for message in (*step.sends, *step.receives):
            path = self._paths[self._pair[message]]
            share = path.share if self._share is None else self._share
            seconds += share * self._rows.wire[message] / path.bandwidth
        return seconds

    def _arrive(self, message: int) -> None:
        """Frees both streams, and wakes all messages and ranks that wait for the message."""
        self.arrived[message] = self._clock.now
        for after in self._after:
            if after[message] >= 0:
                self.count_down(after[message])
        if self._buffers:
            self._buffers.receive(message)
            self.try_waiting(self._rows.dst[message])
        for successor in self._feeds[message]:
            self.count_down(successor)
        for rank in self.waiting[message]:
            self._wake(rank)
