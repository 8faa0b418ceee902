"""Process groups in memory: ranks are threads of one process, and nothing leaves it.

    Network       what all ranks of a run share: messages under way, who waits for what, the log
    MemoryGroup   some of the ranks, as one of them sees them: what a program takes for its group
    Work          something that was started, and must be waited for

Stricter than gloo, so that tests find what a cluster would find later: messages between two ranks
arrive in the order they were sent, a send ends only when its receive was posted, a buffer holds
NaN until its receive was waited for, and an error ends the run where all ranks wait for each other,
where a tensor changes while it is being sent, or where nobody waits for a work that was started.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from ringloom.runtimes.machine import RankError

Key = tuple[tuple[int, ...], int]  # of a group: its ranks of the world, and which of theirs it is
Finish = Callable[[list[Any]], None]
NAMES = count()
GROUPS = WeakValueDictionary[str, "MemoryGroup"]()


@dataclass(frozen=True, slots=True)
class Message:
    """A message from one rank of the world to another, or such a share of a collective."""

    kind: str
    src: int
    dst: int
    bytes: int


class Network:
    """The connections between the ranks of one run."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.log = list[Message]()
        self.works: list[list[Work]] = [[] for _ in range(ranks)]
        self.failure = ""
        self.store = dist.HashStore()
        self._changed = threading.Condition()
        self._sends = defaultdict[object, deque[Send]](deque)
        self._receives = defaultdict[object, deque[Receive]](deque)
        self._calls = defaultdict[tuple[Key, int], dict[int, Collective]](dict)
        self._waiting: dict[int, tuple[Callable[[], bool], str]] = {}
        self._ended = set[int]()
        self._made = Counter[tuple[int, tuple[int, ...]]]()

    def group(self, rank: int, members: Sequence[int] | None = None) -> "MemoryGroup":
        """A new group as `rank` sees it; the n-th of the same members is the same for all."""
        ranks = tuple(range(self.ranks) if members is None else members)
        with self._changed:
            number = self._made[rank, ranks]
            self._made[rank, ranks] += 1
        return MemoryGroup(self, ranks, number, rank)

    def post(self, work: "Send | Receive") -> None:
        """Offer one end of a message; it meets the first other end that nobody has met yet."""
        with self._changed:
            ends: list[Any] = [self._sends[work.between], self._receives[work.between]]
            own, theirs = ends if isinstance(work, Send) else reversed(ends)
            self.works[work.rank].append(work)
            if theirs:
                work.met = theirs.popleft()
                work.met.met = work
            else:
                own.append(work)
            self._changed.notify_all()

    def join(self, call: "Collective", key: Key, number: int, place: int) -> None:
        """Take part in the n-th collective of a group."""
        with self._changed:
            self.works[call.rank].append(call)
            call.others = self._calls[key, number]
            call.others[place] = call
            self._changed.notify_all()

    def wait(self, rank: int, until: Callable[[], bool], what: str) -> None:
        """Block a rank; RankError if another one failed, or if all wait for each other."""
        with self._changed:
            self._waiting[rank] = until, what
            while not self.failure and not until():
                self._notice_stall()
                if not self.failure:
                    self._changed.wait()
            del self._waiting[rank]
            if self.failure:
                raise RankError(self.failure)

    def end(self, rank: int) -> None:
        """Say that a rank does nothing any more."""
        with self._changed:
            self._ended.add(rank)
            self._notice_stall()
            self._changed.notify_all()

    def fail(self, why: str) -> None:
        """End the run: ranks that wait raise RankError with the first reason that was given."""
        with self._changed:
            self.failure = self.failure or why
            self._changed.notify_all()

    def refuse_unwaited(self) -> None:
        """Raise RankError for works that were started and that nobody waited for."""
        left = [work for works in self.works for work in works if not work.waited]
        if left:
            raise RankError(f"started and never waited for: {', '.join(map(str, left))}")

    def _notice_stall(self) -> None:
        if len(self._waiting) + len(self._ended) < self.ranks or not self._waiting:
            return
        if not any(until() for until, _ in self._waiting.values()):
            told = (f"rank {rank}: {what}" for rank, (_, what) in sorted(self._waiting.items()))
            gone = f"\nranks {sorted(self._ended)} are done" if self._ended else ""
            self.failure = "every rank waits for another one\n" + "\n".join(told) + gone
            self._changed.notify_all()


class MemoryGroup:
    """Some ranks of a network, in the order of the group, as one of them sees them."""

    def __init__(self, network: Network, ranks: tuple[int, ...], number: int, me: int) -> None:
        self.network, self.ranks, self.me = network, ranks, me
        self.key: Key = ranks, number
        self.group_name = f"memory-{next(NAMES)}"
        self._calls = count()
        GROUPS[self.group_name] = self

    def rank(self) -> int:
        """The place of this rank in the group."""
        return self.ranks.index(self.me)

    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def send(self, tensor: Any, to: int) -> "Send":
        """Start a message to a rank of the group."""
        return Send(self, tensor, self._other(to))

    def receive(self, tensor: Any, source: int) -> "Receive":
        """Start to receive from a rank of the group."""
        return Receive(self, tensor, self._other(source))

    def _other(self, place: int) -> int:
        if not 0 <= place < len(self.ranks):
            raise ValueError(f"rank {place} of a group of {len(self.ranks)}")
        if self.ranks[place] == self.me:
            raise ValueError(f"rank {self.me} sends to itself, which gloo cannot")
        return self.ranks[place]

    def start(
        self,
        kind: str,
        given: Any,
        finish: Finish,
        shares: Sequence[int | None] = (),
        out: Any = None,
    ) -> "Collective":
        """Start a collective: `finish` gets what all ranks gave, in their order in the group.

        shares: bytes that go to each rank of the group, None where nothing does. out: the tensor
        that it writes.
        """
        for dst, size in zip(self.ranks, shares, strict=False):
            if dst != self.me and size is not None:
                self.network.log.append(Message(kind, self.me, dst, size))
        return Collective(self, kind, given, finish, out, next(self._calls))

    def barrier(self) -> "Collective":
        """Start a barrier."""
        return self.start("barrier", None, lambda _: None)


class Work:
    """Something that was started."""

    def __init__(self, group: MemoryGroup, what: str) -> None:
        self.network, self.rank, self.what, self.waited = group.network, group.me, what, False

    def __str__(self) -> str:
        return f"{self.what} of rank {self.rank}"

    def wait(self, timeout: Any = None) -> bool:
        """Block until it is done."""
        self.network.wait(self.rank, self._ready, self.what)
        self.waited = True
        self._finish()
        return True

    def _ready(self) -> bool:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError


class Send(Work):
    """One end of a message, with the data as it was when it was sent."""

    def __init__(self, group: MemoryGroup, tensor: Any, dst: int) -> None:
        super().__init__(group, f"send of {told(tensor)} to rank {dst}")
        self.tensor, self.data = contiguous(tensor, self.what), tensor.detach().clone()
        self.between, self.met = (group.key, group.me, dst), None
        self.network.log.append(Message("send", group.me, dst, tensor.nbytes))
        self.network.post(self)

    def _ready(self) -> bool:
        return self.met is not None

    def _finish(self) -> None:
        if not same_bits(self.tensor, self.data):
            raise RankError(f"{self}: the tensor changed while it was being sent")


class Receive(Work):
    """The other end: the buffer holds NaN until somebody has waited for the message."""

    def __init__(self, group: MemoryGroup, tensor: Any, src: int) -> None:
        super().__init__(group, f"receive of {told(tensor)} from rank {src}")
        self.tensor = contiguous(tensor, self.what)
        self.between, self.met = (group.key, src, group.me), None
        spoil(tensor)
        self.network.post(self)

    met: Send | None

    def _ready(self) -> bool:
        return self.met is not None

    def _finish(self) -> None:
        assert self.met is not None
        sent = self.met.data
        if (sent.numel(), sent.dtype) != (self.tensor.numel(), self.tensor.dtype):
            raise RankError(f"{self}: what came is {told(sent)}")
        with torch.no_grad():
            self.tensor.copy_(sent.view_as(self.tensor))


class Collective(Work):
    """One rank's part in something that all ranks of a group do together."""

    def __init__(
        self, group: MemoryGroup, kind: str, given: Any, finish: Finish, out: Any, number: int
    ) -> None:
        about = f" of {told(given)}" if isinstance(given, torch.Tensor) else ""
        super().__init__(group, f"{kind}{about} of ranks {list(group.ranks)}, call {number}")
        self.kind, self.finish, self.size = kind, finish, group.size()
        for tensor in (given, out):
            contiguous(tensor, self.what)
        self.given = given.detach().clone() if isinstance(given, torch.Tensor) else given
        if out is not None:
            spoil(out)
        self.others: dict[int, Collective] = {}
        self.network.join(self, group.key, number, group.rank())

    def _ready(self) -> bool:
        return len(self.others) == self.size

    def _finish(self) -> None:
        kinds = {call.kind for call in self.others.values()}
        if len(kinds) > 1:
            raise RankError(f"{self}: others call {', '.join(sorted(kinds - {self.kind}))}")
        with torch.no_grad():
            self.finish([self.others[place].given for place in range(self.size)])


# ---- tensors


def told(tensor: Any) -> str:
    """A tensor in an error message."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def contiguous(tensor: Any, what: str) -> Any:
    """The tensor; ValueError where torch would refuse to send it."""
    if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
        raise ValueError(f"{what}: the tensor has to be contiguous")
    return tensor


def spoil(tensor: Any) -> None:
    """Fill a buffer with what nobody wants to read."""
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)


def same_bits(one: Any, other: Any) -> bool:
    """True if two tensors of one dtype and shape hold the same bits."""
    flat = (x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (one, other))
    return bool(torch.equal(*flat))
