"""Flow control: what a message brings takes slots at its destination until the last read of any.

A message starts only when its destination has a free slot for each of its blocks. Accumulators
need none: they are merged where they arrive. Initial copies lie where the pass before left them.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np

from ringloom.simulator.engines.tasks import Tasks


class Buffers:
    """Free slots per input and rank, and how often what each message brought is still read."""

    def __init__(self, ranks: int, rows: Tasks, room: Mapping[str, int]) -> None:
        self._free = {tensor: [n] * ranks for tensor, n in room.items()}
        self._dst, self._wanted = rows.dst, list[dict[str, int]]()
        self._reads = [0] * len(rows.dst)
        for message in chain.from_iterable((*rows.needs, *rows.reads)):
            self._reads[message] += 1
        for sent in chain.from_iterable(messages for messages, _ in rows.rounds):
            blocks = np.count_nonzero(sent.node.blocks >= 0, axis=1).tolist()
            self._wanted += [dict.fromkeys(room.keys() & sent.node.tensors, n) for n in blocks]

    def take(self, message: int) -> bool:
        """Take a slot for each block of a message that is to start; False if one is missing."""
        rank, wanted = self._dst[message], self._wanted[message]
        if any(self._free[tensor][rank] < n for tensor, n in wanted.items()):
            return False
        self._change(message, -1)
        return True

    def arrived(self, message: int) -> None:
        """Free the slots of a message that nobody will read."""
        if not self._reads[message]:
            self._change(message, 1)

    def read(self, messages: Iterable[int]) -> None:
        """Note that messages were read once more; after the last time their slots are free."""
        for message in messages:
            self._reads[message] -= 1
            if not self._reads[message]:
                self._change(message, 1)

    def _change(self, message: int, sign: int) -> None:
        for tensor, n in self._wanted[message].items():
            self._free[tensor][self._dst[message]] += sign * n
