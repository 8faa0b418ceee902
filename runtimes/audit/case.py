"""The case of an audit: an attention to compute, its ranks, and which position each local row is.

A slot is a local row of a rank, counted over all ranks in their order. Slots of the KV side may
hold the same position on several ranks, and slots of either side may be padding.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError
from ringloom.planner.masks.mask import SideName
from ringloom.planner.workload import Workload, check_request

Ints = NDArray[np.int64]
Positions = tuple[Ints, ...]  # of each rank's local rows, in their order; -1 is padding
PASSES = "forward", "both"


@dataclass(frozen=True, eq=False)
class Side:
    """The slots of one side: their positions, their ranks, and the key that each of them holds.

    `columns` numbers what a slot holds: its position, or, of padding, a number of its own behind
    all positions. All int64 [slots].
    """

    positions: Ints
    ranks: Ints
    columns: Ints
    tokens: int

    @property
    def width(self) -> int:
        """Columns: positions and padding."""
        return self.tokens + int((self.positions < 0).sum())

    def locals(self) -> Ints:
        """Returns the index of each slot on its rank: int64 [slots]."""
        first = np.searchsorted(self.ranks, self.ranks)
        return np.arange(len(self.ranks)) - first

    def first_slots(self) -> Ints:
        """Returns the first slot that holds each column, [width]; -1 where none does."""
        first = np.full(self.width, -1)
        first[self.columns[::-1]] = np.arange(len(self.columns))[::-1]
        return first


@dataclass(frozen=True, eq=False)
class Case:
    """An audit to make: the attention, the ranks, and which positions they hold.

    `q` and `kv`: positions of each rank's local rows, int [tokens] each, -1 for padding; None to
    have them detected, where ranks then hold nearly equal numbers of tokens. `passes`: "forward"
    or "both". `seed`: of random inputs. `steps`: calls in a row that must not depend on each other.
    Raises RingloomError for positions that do not hold the whole sequence.
    """

    work: Workload
    ranks: int
    q: Positions | None = None
    kv: Positions | None = None
    passes: str = "both"
    seed: int = 0
    steps: int = 2

    def __post_init__(self) -> None:
        check_request(self.work, self.ranks, "Case(work, ranks)")
        if self.passes not in PASSES:
            raise RingloomError(f"passes must be one of {', '.join(PASSES)}, not {self.passes!r}")
        if self.work.sinks:
            raise RingloomError("attention with sinks cannot be audited: attend takes q, k and v")
        if self.q is None and self.kv is None:
            return
        q = _whole("q", self.q if self.q is not None else self.kv, self.work.seq, self.ranks)
        kv = _whole("kv", self.kv if self.kv is not None else q, self.work.kv_seq, self.ranks)
        if len(held := _held(q)) != len(np.unique(held)):
            raise RingloomError("q: a position is on two ranks, or twice on one")
        object.__setattr__(self, "q", q)
        object.__setattr__(self, "kv", kv)

    @property
    def known(self) -> bool:
        """True where positions are given."""
        return self.q is not None

    def in_slots(self) -> "Case":
        """Returns the case with slots in place of positions that are not known."""
        if self.known:
            return self
        q, kv = (_even(n, self.ranks) for n in (self.work.seq, self.work.kv_seq))
        return replace(self, q=q, kv=kv)

    def side(self, name: SideName) -> Side:
        """Returns the slots of queries or of keys."""
        shards = self.q if name == "q" else self.kv
        if shards is None:
            return self.in_slots().side(name)
        tokens = self.work.seq if name == "q" else self.work.kv_seq
        positions = np.concatenate(shards)
        columns = positions.copy()
        pads = positions < 0
        columns[pads] = tokens + np.arange(pads.sum())
        ranks = np.repeat(np.arange(self.ranks), [len(shard) for shard in shards])
        return Side(positions, ranks, columns, tokens)


def _whole(name: str, shards: object, tokens: int, ranks: int) -> Positions:
    """Returns shards as arrays; raises RingloomError unless they hold every position."""
    if not isinstance(shards, tuple | list) or len(shards) != ranks:
        raise RingloomError(f"{name} must be the positions of each of {ranks} ranks")
    arrays = tuple(np.asarray(shard, np.int64).reshape(-1) for shard in shards)
    held = np.unique(_held(arrays))
    if not np.array_equal(held, np.arange(tokens)):
        raise RingloomError(f"{name}: the ranks must hold each of the positions 0 to {tokens - 1}")
    return arrays


def _held(shards: Positions) -> Ints:
    positions = np.concatenate(shards)
    return positions[positions >= 0]


def _even(tokens: int, ranks: int) -> Positions:
    """Cuts 0..tokens - 1 into runs of nearly equal length, the first ones longer."""
    return tuple(np.array_split(np.arange(tokens, dtype=np.int64), ranks))
