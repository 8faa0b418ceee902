"""Flow control: a copy takes a slot of a rank that does not own it until its last read there.

A message starts only when its destination has a free slot for each of its blocks. Accumulators
need none: they are merged where they arrive.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.errors import PlanError
from planner.ir import TENSORS, Attend, Plan
from simulator.engines.tasks import Tasks


class Buffers:
    """Free slots per input and rank; `sends` and `reads`: the copies of a message, of a call."""

    def __init__(self, plan: Plan, rows: Tasks, room: Mapping[str, int]) -> None:
        self._plan, self.room = plan, dict(room)
        self._free = {t: [n] * plan.ranks for t, n in self.room.items()}
        self._tensor, self._rank, self._uses = list[str](), list[int](), list[int]()
        self._here = dict[tuple[str, int, int], int]()  # the copy of (input, block, rank)
        self._brings = [list[int]() for _ in rows.messages.src]
        self.sends = [list[int]() for _ in rows.messages.src]
        self.reads = [list[int]() for _ in rows.calls.rank]
        for copy in plan.start:
            for tensor in copy.tensors:
                for block, rank in zip(*(a.tolist() for a in copy.flat()), strict=True):
                    self._begin(tensor, block, rank)
        self._follow(rows)

    def _follow(self, rows: Tasks) -> None:
        """Count the reads of each copy, in plan order; in a step messages come before calls."""
        for first, _, node in rows.parts:
            if isinstance(node, Attend):
                for call, rank in enumerate(node.rank.tolist(), first):
                    sides = {"q": node.q[call - first], "kv": node.kv[call - first]}
                    for tensor in self.room:
                        blocks = sides[TENSORS[tensor].side].tolist()
                        self.reads[call] += self._read(tensor, blocks, rank)
                continue
            tensors = [t for t in node.tensors if t in self.room]
            for message, blocks in enumerate(node.blocks.tolist(), first):
                src, dst = rows.messages.src[message], rows.messages.dst[message]
                for tensor in tensors:
                    self.sends[message] += self._read(tensor, blocks, src)
                    self._brings[message] += self._copies(tensor, blocks, dst)

    def _read(self, tensor: str, blocks: Sequence[int], rank: int) -> Iterator[int]:
        for block in blocks:
            if (copy := self._here.get((tensor, block, rank))) is not None:
                self._uses[copy] += 1
                yield copy

    def _copies(self, tensor: str, blocks: Sequence[int], rank: int) -> Iterator[int]:
        owners = self._plan.side(tensor).owners
        for block in blocks:
            if block >= 0 and owners[block] != rank:
                yield self._copy(tensor, block, rank)

    def _copy(self, tensor: str, block: int, rank: int) -> int:
        copy = self._here[tensor, block, rank] = len(self._uses)
        self._tensor.append(tensor)
        self._rank.append(rank)
        self._uses.append(0)
        return copy

    def _begin(self, tensor: str, block: int, rank: int) -> None:
        """Give a slot to an initial copy."""
        if tensor in self.room and self._plan.side(tensor).owners[block] != rank:
            self._copy(tensor, block, rank)
            self._free[tensor][rank] -= 1
            if self._free[tensor][rank] < 0:
                raise PlanError(
                    f"{self._plan.name}: rank {rank} has more initial copies of {tensor}"
                    f" than the {self.room[tensor]} it has room for"
                )

    def take(self, message: int) -> bool:
        """Take a slot for each block of a message that is to start; False if one is missing."""
        wanted = dict[str, int]()
        for copy in self._brings[message]:
            wanted[self._tensor[copy]] = wanted.get(self._tensor[copy], 0) + 1
        rank = self._rank[self._brings[message][0]] if wanted else 0
        if any(self._free[tensor][rank] < n for tensor, n in wanted.items()):
            return False
        for tensor, n in wanted.items():
            self._free[tensor][rank] -= n
        return True

    def arrived(self, message: int) -> None:
        """Free the slots of copies that nobody will read."""
        for copy in self._brings[message]:
            if not self._uses[copy]:
                self._free[self._tensor[copy]][self._rank[copy]] += 1

    def count_down(self, copies: list[int]) -> None:
        """Note that copies were read once more; after the last time their slots are free."""
        for copy in copies:
            self._uses[copy] -= 1
            if not self._uses[copy]:
                self._free[self._tensor[copy]][self._rank[copy]] += 1
