"""Kernels on chips whose transfers take a share: they slow down while messages come and go."""

from simulator.engines.events import Action, Clock

LEAST = 0.05  # of the chip that compute keeps however many transfers run


class Chips:
    """One kernel per rank at most, finished when its seconds at full speed have been done."""

    def __init__(self, clock: Clock, ranks: int, done: Action) -> None:
        self._clock, self._done = clock, done
        self._taken = [0.0] * ranks  # share of the chip
        self._left = [0.0] * ranks  # seconds at full speed, at the time `_since`
        self._since = [0.0] * ranks
        self._turn = [0] * ranks  # of the end that counts: earlier ones were put off
        self._busy = [False] * ranks

    def start(self, rank: int, seconds: float) -> None:
        """Run a kernel; `done(rank)` follows when it has ended."""
        self._left[rank], self._since[rank], self._busy[rank] = seconds, self._clock.now, True
        self._plan(rank)

    def take(self, rank: int, share: float) -> None:
        """Begin a transfer on a rank or, with a negative share, end one."""
        if self._busy[rank]:
            passed = self._clock.now - self._since[rank]
            self._left[rank] = max(0.0, self._left[rank] - passed * self._rate(rank))
            self._since[rank] = self._clock.now
        self._taken[rank] += share
        if self._busy[rank]:
            self._plan(rank)

    def _rate(self, rank: int) -> float:
        return max(LEAST, 1.0 - self._taken[rank])

    def _plan(self, rank: int) -> None:
        self._turn[rank] += 1
        end = self._clock.now + self._left[rank] / self._rate(rank)
        self._clock.at(end, self._end, (rank, self._turn[rank]))

    def _end(self, what: tuple[int, int]) -> None:
        rank, turn = what
        if turn == self._turn[rank] and self._busy[rank]:
            self._busy[rank] = False
            self._done(rank)
