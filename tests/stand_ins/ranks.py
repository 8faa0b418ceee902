"""Ranks that run in turns: each runs until it waits for another.

    Ranks(8).run(function)      the results of function(rank) on every rank

Inside of it `HERE.rank` is the rank that runs, and `HERE.ranks` all of them. They meet on a board:
`put` pins a value under a key, `take` waits until it is there, and takes it down. One rank runs at
a time, so a run is the same each time.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Place(threading.local):
    """Of each thread: the rank that it runs, and all of them."""

    rank: int
    ranks: "Ranks"


HERE = Place()


class Stuck(RuntimeError):
    """Ranks that wait for each other, or whose messages do not fit."""


class Ranks:
    """The ranks of a run, and the board on which they leave values for each other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.errors = list[BaseException]()
        self._board = dict[object, Any]()
        self._numbers = defaultdict[object, int](int)
        self._agreed = dict[object, object]()
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._alive = list[int](range(count))
        self._idle = 0

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Returns the results of all ranks; raises the first error of any."""
        results: list[Any] = [None] * self.count

        def live(rank: int) -> None:
            HERE.rank, HERE.ranks = rank, self
            self._turns[rank].acquire()
            try:
                with np.errstate(all="ignore"):  # which is a thread's own
                    results[rank] = function(rank) if not self.errors else None
            except BaseException as error:
                self.errors.append(error)
            self._idle = 0
            following = self._next()
            self._alive.remove(rank)
            self._turns[following].release()

        threads = [  # daemons, as one that an interrupt leaves without a turn never ends
            threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(self.count)
        ]
        try:
            for thread in threads:
                thread.start()
            self._turns[0].release()
            for thread in threads:
                thread.join()
        except BaseException as error:
            self.errors.append(error)  # so that the ranks end where they wait
            raise
        if self.errors:
            raise self.errors[0]
        if self._board:
            raise Stuck(f"nobody takes {next(iter(self._board))}")
        return results

    def number(self, *key: object) -> int:
        """Returns how often this was asked before for the key."""
        self._numbers[key] += 1
        return self._numbers[key] - 1

    def agree(self, key: object, value: object) -> None:
        """Raises Stuck unless all ranks that come to this have the same value."""
        if (other := self._agreed.setdefault(key, value)) != value:
            raise Stuck(f"{value} on rank {HERE.rank}, {other} on another")

    def put(self, key: object, value: Any) -> None:
        """Pins a value to the board."""
        self._board[key] = value
        self._idle = 0

    def take(self, key: object) -> Any:
        """Takes a value down from the board, once it is there; Stuck if it never will be."""
        while key not in self._board:
            self._idle += 1
            if self._idle > len(self._alive) or self.errors:
                raise Stuck(f"rank {HERE.rank} waits for {key}")
            self._turns[self._next()].release()
            self._turns[HERE.rank].acquire()
        self._idle = 0
        return self._board.pop(key)

    def share(self, what: str, value: Any, members: Sequence[int]) -> Callable[[], list[Any]]:
        """Starts a collective among some ranks; the result waits, and returns all their values."""
        group = tuple(members)
        call = what, group, self.number(group, HERE.rank)
        arrived = self._board.setdefault(call, {})
        arrived[HERE.rank], self._idle = value, 0
        if len(arrived) == len(group):
            del self._board[call]
            values = [arrived[member] for member in group]
            for member in group:
                self.put((*call, member), values)
        return lambda: self.take((*call, HERE.rank))

    def _next(self) -> int:
        """Returns the rank whose turn is next."""
        alive = self._alive
        return alive[(alive.index(HERE.rank) + 1) % len(alive)]


def part(x: Any, count: int, place: int, axis: int = 0) -> Any:
    """One of so many equal parts of an array; Stuck where it has none."""
    size, rest = divmod(x.shape[axis], count)
    if rest:
        raise Stuck(f"{count} parts of {x.shape[axis]}")
    return np.split(x, [size * place, size * (place + 1)], axis)[1]
