"""Defines the case of an audit: an attention, its ranks, and the position of each local row.

A slot is a local row of a rank; slots are numbered over all ranks in order. KV slots may hold the
same position on several ranks, and slots of queries and keys may be padding.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError
from ringloom.planner.masks.mask import SideName
from ringloom.planner.workload import Workload, check_request

Ints = NDArray[np.int64]
Positions = tuple[Ints, ...]  # positions of each rank's local rows, in order; -1 is padding
PASSES = "forward", "both"


@dataclass(frozen=True, eq=False)
class Side:
    """The slots of queries or of keys: positions, ranks and columns, int64 [slots] each.

    A slot's column is its position; each padding slot has its own column after all positions.
    """

    positions: Ints
    ranks: Ints
    columns: Ints
    tokens: int

    @property
    def width(self) -> int:
        """The number of columns, including padding."""
        return self.tokens + int((self.positions < 0).sum())

    def locals(self) -> Ints:
        """Returns the index of each slot on its rank: int64 [slots]."""
        first = np.searchsorted(self.ranks, self.ranks)
        return np.arange(len(self.ranks)) - first

    def first_slots(self) -> Ints:
        """Returns the first slot of each column, or -1 for a column without slots: [width]."""
        first = np.full(self.width, -1)
        first[self.columns[::-1]] = np.arange(len(self.columns))[::-1]
        return first


@dataclass(frozen=True, eq=False)
class Case:
    """The case of an audit: the attention, the ranks, and the positions that they hold.

    `q` and `kv`: positions of each rank's local rows, int [tokens] each, -1 for padding. If both
    are None, the audit detects them; ranks then hold nearly equal numbers of tokens. `passes`:
    "forward" or "both". `seed`: of random inputs. `steps`: consecutive calls that must not depend
    on each other. Raises RingloomError for positions that do not cover the sequence.
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
            raise RingloomError(
                "attention with sinks cannot be audited: attend takes only q, k and v"
            )
        if self.q is None and self.kv is None:
            return
        q = _as_positions("q", self.q if self.q is not None else self.kv, self.work.seq, self.ranks)
        kv = _as_positions(
            "kv", self.kv if self.kv is not None else q, self.work.kv_seq, self.ranks
        )
        tokens = _without_padding(q)
        if len(tokens) != len(np.unique(tokens)):
            raise RingloomError("q must not contain a position twice")
        object.__setattr__(self, "q", q)
        object.__setattr__(self, "kv", kv)

    @property
    def has_positions(self) -> bool:
        """True if the case has positions."""
        return self.q is not None

    def in_slots(self) -> "Case":
        """Returns the case with slot numbers as positions if positions are unknown."""
        if self.has_positions:
            return self
        q, kv = (_split_evenly(n, self.ranks) for n in (self.work.seq, self.work.kv_seq))
        return replace(self, q=q, kv=kv)

    def side(self, name: SideName) -> Side:
        """Returns the slots of queries or of keys."""
        shards = self.q if name == "q" else self.kv
        if shards is None:
            return self.in_slots().side(name)
        tokens = self.work.seq if name == "q" else self.work.kv_seq
        positions = np.concatenate(shards)
        columns = positions.copy()
        is_padding = positions < 0
        columns[is_padding] = tokens + np.arange(is_padding.sum())
        ranks = np.repeat(np.arange(self.ranks), [len(shard) for shard in shards])
        return Side(positions, ranks, columns, tokens)


def _as_positions(name: str, shards: object, tokens: int, ranks: int) -> Positions:
    """Returns shards as arrays; raises RingloomError unless they cover every position."""
    if not isinstance(shards, tuple | list) or len(shards) != ranks:
        raise RingloomError(f"{name} must list the positions of each of {ranks} ranks")
    arrays = tuple(np.asarray(shard, np.int64).reshape(-1) for shard in shards)
    if not np.array_equal(np.unique(_without_padding(arrays)), np.arange(tokens)):
        raise RingloomError(f"{name} must contain all positions from 0 to {tokens - 1}")
    return arrays


def _without_padding(shards: Positions) -> Ints:
    positions = np.concatenate(shards)
    return positions[positions >= 0]


def _split_evenly(tokens: int, ranks: int) -> Positions:
    """Splits positions into contiguous shards of nearly equal length, longer shards first."""
    return tuple(np.array_split(np.arange(tokens, dtype=np.int64), ranks))
