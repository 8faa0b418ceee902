"""Messages from rank to rank, a row each, with their steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from planner.analysis.messages import message_bytes
from planner.ir import Plan
from ringloom.report.facts.lists import Lists, lists
from ringloom.views.units import size


@dataclass(frozen=True, eq=False)
class Messages:
    """Columns of equal length, in plan order; `kind` indexes `kinds`, tensors such as KV,DKV."""

    at: NDArray[np.int32]  # the step
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes: NDArray[np.int64]
    kind: NDArray[np.int32]
    kinds: tuple[tuple[str, ...], ...]
    blocks: Lists

    def ways(self, step: int) -> list[tuple[int, int]]:
        """The pairs (from, to) of a step, each once."""
        here = self._of(step)
        pairs = zip(self.src[here].tolist(), self.dst[here].tolist(), strict=True)
        return list(dict.fromkeys(pairs))

    def _of(self, step: int) -> slice:
        """Returns the messages of a step, as a slice: they are in plan order."""
        return slice(*np.searchsorted(self.at, (step, step + 1)))

    def words(self, step: int) -> str:
        """Describe the messages of a step: "KV: 7 transfers, 3.5 GiB"."""
        sent, ways, kinds = self._in_all
        if step >= len(sent) or not sent[step]:
            return "no transfers"
        names = {t for tensors in compress(self.kinds, kinds[step]) for t in tensors}
        transfers = f"{ways[step]} transfer{'s' * int(ways[step] != 1)}"
        return f"{', '.join(sorted(names))}: {transfers}, {size(int(sent[step]))}"

    @cached_property
    def _in_all(self) -> tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.bool_]]:
        """Bytes and ways [steps], and which kinds travel [steps, kinds], up to the last message."""
        steps = int(self.at.max(initial=-1)) + 1
        sent, kinds = np.zeros(steps, np.int64), np.zeros((steps, len(self.kinds)), np.bool_)
        np.add.at(sent, self.at, self.bytes)
        kinds[self.at, self.kind] = True
        ranks = int(max(self.src.max(initial=0), self.dst.max(initial=0))) + 1
        ways = np.unique((self.at.astype(np.int64) * ranks + self.src) * ranks + self.dst)
        return sent, np.bincount(ways // ranks**2, minlength=steps), kinds


def messages(plan: Plan) -> Messages:
    """Returns all messages of a plan."""
    moves = list(plan.moves())
    kinds = {tensors: n for n, tensors in enumerate(dict.fromkeys(m.tensors for _, m in moves))}
    at = _column([np.full(len(move), number) for number, move in moves])
    kind = _column([np.full(len(move), kinds[move.tensors]) for _, move in moves])
    src, dst = (_column([getattr(m, end) for _, m in moves]) for end in ("src", "dst"))
    blocks = lists([m.blocks for _, m in moves])
    sizes = [message_bytes(plan, number, move) for number, move in moves]
    carried = np.concatenate([*sizes, []]).astype(np.int64)
    return Messages(at, src, dst, carried, kind, tuple(kinds), blocks)


def _column(parts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([*parts, []]).astype(np.int32)
