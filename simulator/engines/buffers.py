"""Flow control: the blocks of a message take slots at its destination until their last read.

A message starts only if its destination has a free slot for each of its blocks. Accumulators need
no slots, because they are merged on arrival, and initial copies need none.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np

from ringloom.simulator.engines.tasks import Tasks


class Buffers:
    """The free slots of each input and rank, and the remaining reads of each message."""

    def __init__(self, ranks: int, rows: Tasks, room: Mapping[str, int]) -> None:
        self._free = {tensor: [n] * ranks for tensor, n in room.items()}
        self._dst, self._slots = rows.dst, list[dict[str, int]]()
        self._reads = [0] * len(rows.dst)
        for message in chain.from_iterable((*rows.needs, *rows.reads)):
            self._reads[message] += 1
        for sent in chain.from_iterable(messages for messages, _ in rows.rounds):
            blocks = np.count_nonzero(sent.node.blocks >= 0, axis=1).tolist()
            self._slots += [dict.fromkeys(room.keys() & sent.node.tensors, n) for n in blocks]

    def take(self, message: int) -> bool:
        """Takes a slot for each block of a message; returns False if too few are free."""
        rank, slots = self._dst[message], self._slots[message]
        if any(self._free[tensor][rank] < n for tensor, n in slots.items()):
            return False
        self._change(message, -1)
        return True

    def receive(self, message: int) -> None:
        """Frees the slots of a message that is never read."""
        if not self._reads[message]:
            self._change(message, 1)

    def read(self, messages: Iterable[int]) -> None:
        """Counts a read of each message; frees its slots after the last one."""
        for message in messages:
            self._reads[message] -= 1
            if not self._reads[message]:
                self._change(message, 1)

    def _change(self, message: int, sign: int) -> None:
        for tensor, n in self._slots[message].items():
            self._free[tensor][self._dst[message]] += sign * n
