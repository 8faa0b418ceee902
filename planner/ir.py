"""plan    ::= Plan(name, workload, ranks, partition, pass_, start, buffers, steps)
step    ::= Step(attends, moves)
attend  ::= Attend(rank, q, kv)          a rectangle: q blocks x kv blocks, on one rank
move    ::= Move(tensors, blocks, src, dst)   one message per row
copy    ::= InitialCopy(tensors, blocks, rank)   copies on other ranks before step 0
tensor  ::= Q DOUT STATS OUT DQ (query side) | KV DKV (KV side)

A node stores its rows as columns of integers, with -1 for "no block", never as Python objects.
Within a step: (1) every move reads its source as of the start of the step, copying an input, or
removing an accumulator; (2) attends read inputs as of the start of the step; (3) the results of
attends, then the arrivals, are added in node order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringloom.planner.columns import flatten_blocks, row_index, vstack_padded
from ringloom.planner.errors import PlanError, as_tuple_of, brief
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import PRINTED_ROWS, Ints, Partition, Side, check_places, describe
from ringloom.planner.workload import DTYPES, Workload, check_request

Pass = Literal["forward", "backward"]
Dim = Literal["head_dim", "v_head_dim"]  # a field of the workload
Index = NDArray[np.intp]
Rows = NDArray[np.bool_] | np.bool_


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a plan: per token and head, one vector for each of `vectors`, and `scalars`."""

    side: SideName
    accumulates: bool
    vectors: tuple[Dim, ...]
    scalars: int = 0
    wide: bool = False  # in float32, or in float64 for float64 inputs

    def elements(self, work: Workload) -> int:
        """Returns the number of vector elements per token and head."""
        return sum(getattr(work, dim) for dim in self.vectors)

    def bytes_per_token(self, work: Workload, finished: bool = False) -> int:
        """Returns the bytes per token and head of the batch; `finished`: in the input dtype."""
        size = DTYPES[work.dtype]
        wide = max(4, size) if self.wide else size
        vectors = self.elements(work) * (size if finished else wide)
        return work.batch * (vectors + self.scalars * wide)


QK: Dim = "head_dim"
V: Dim = "v_head_dim"
TENSORS = {
    "Q": Tensor("q", False, (QK,)),
    "DOUT": Tensor("q", False, (V,)),
    "STATS": Tensor("q", False, (), scalars=2, wide=True),  # lse and rowsum(dO * O)
    "OUT": Tensor("q", True, (V,), scalars=1, wide=True),  # o, normalised, and lse
    "DQ": Tensor("q", True, (QK,), wide=True),
    "KV": Tensor("kv", False, (QK, V)),
    "DKV": Tensor("kv", True, (QK, V), wide=True),
}
INPUTS: dict[Pass, tuple[str, ...]] = {
    "forward": ("Q", "KV"),
    "backward": ("Q", "DOUT", "STATS", "KV"),
}
ACCUMULATORS: dict[Pass, tuple[str, ...]] = {"forward": ("OUT",), "backward": ("DQ", "DKV")}
CARRIED: dict[Pass, tuple[str, ...]] = {p: INPUTS[p] + ACCUMULATORS[p] for p in INPUTS}
INITIAL: dict[Pass, tuple[str, ...]] = INPUTS | {"backward": (*INPUTS["backward"], "OUT")}
QUERY_SIDE: dict[Pass, tuple[str, ...]] = {"forward": ("Q",), "backward": ("Q", "DOUT", "STATS")}


def result_tensor(pass_: Pass) -> str:
    """Returns the accumulator of the query side."""
    return ACCUMULATORS[pass_][0]


def _column(values: ArrayLike, label: str) -> Ints:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(array.shape, np.int32)
    if array.dtype.kind not in "iu":
        raise PlanError(f"{label} must be whole numbers, not {array.dtype}")
    if array.dtype != np.int32:
        if array.min() < -1 or array.max() > np.iinfo(np.int32).max:
            raise PlanError(f"{label} out of range: {array.min()}..{array.max()}")
        array = array.astype(np.int32)
    array = array.view()
    array.flags.writeable = False
    return array


def _block_table(values: ArrayLike, rows: int, label: str) -> tuple[Ints, Rows]:
    """Returns blocks as [rows, width], and True for rows with a block (one True for all rows)."""
    table = _column(values, label)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or len(table) != rows:
        raise PlanError(f"{label}: {rows} rows need a [{rows}, width] table, not {table.shape}")
    low = table.min(initial=0)
    if table.size and low == 0:
        return table, np.True_
    if low < -1:
        raise PlanError(f"{label} out of range: {low}; -1 stands for no block")
    return table, (table >= 0).any(axis=1)


def _rank_column(values: ArrayLike, label: str) -> Ints:
    column = _column(values, label)
    if column.ndim != 1:
        raise PlanError(f"{label} must be one number per row, not shape {column.shape}")
    return column


def _comparable(field: Any) -> Any:
    return field.tobytes() if isinstance(field, np.ndarray) else field


class Node:
    """A table of rows, stored by columns; nodes compare by value and print as Python.

    Columns of ranks are [n]; tables of blocks are [n, w], padded with -1. Drops rows that have no
    block in one of the tables, then table columns without blocks.
    """

    __slots__: tuple[str, ...] = ()

    def _set_columns(self, ranks: dict[str, ArrayLike], tables: dict[str, ArrayLike]) -> None:
        kind = type(self).__name__.lower()
        columns = {name: _rank_column(values, f"{kind}: {name}") for name, values in ranks.items()}
        src, *rest = columns.values()
        keep: Rows = np.True_
        for dst in rest:
            if len(src) != len(dst):
                raise PlanError(f"{kind}: {len(src)} sources but {len(dst)} destinations")
            keep = src != dst
        for name, values in tables.items():
            columns[name], has_block = _block_table(values, len(src), f"{kind}: {name}")
            keep = keep & has_block
        rows = row_index(keep) if isinstance(keep, np.ndarray) and not keep.all() else None
        for name, column in columns.items():
            object.__setattr__(self, name, _take_rows(column, rows))

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def select(self, rows: NDArray[Any] | slice) -> Self:
        """Returns the node with some of its rows, given by index or by a bool mask [n]."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = row_index(rows)
        return type(self)(*(f[rows] if isinstance(f, np.ndarray) else f for f in self._fields()))

    @classmethod
    def joined(cls, nodes: Sequence[Self]) -> Self:
        """Joins the rows of several nodes of the same tensors in one node."""
        if len(nodes) == 1:
            return nodes[0]
        columns = zip(*(node._fields() for node in nodes), strict=True)
        return cls(*(vstack_padded(c) if isinstance(c[0], np.ndarray) else c[0] for c in columns))

    def __len__(self) -> int:
        return len(getattr(self, self.__slots__[-1]))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return [*map(_comparable, self._fields())] == [*map(_comparable, other._fields())]

    def __hash__(self) -> int:
        return hash((type(self).__name__, *map(_comparable, self._fields())))

    def __repr__(self) -> str:
        if len(self) > PRINTED_ROWS:
            return f"<{type(self).__name__} of {len(self)} rows>"
        parts = (f.tolist() if isinstance(f, np.ndarray) else f for f in self._fields())
        return f"{type(self).__name__}({', '.join(map(repr, parts))})"


def _take_rows(column: Ints, rows: NDArray[np.bool_] | slice | None) -> Ints:
    """Returns the given rows of a column or table, without table columns that have no block."""
    part = column if rows is None else column[rows]
    if part.ndim == 2 and part.min(initial=0) < 0:
        has_block = np.array([entries.max(initial=-1) >= 0 for entries in part.T])
        part = part if has_block.all() else part[:, row_index(has_block)]
    return part


class Carrying(Node):
    """Rows of blocks of some tensors: all inputs or all accumulators, and all of one side."""

    __slots__ = ()
    tensors: tuple[str, ...]

    @property
    def side(self) -> SideName:
        """The side of the blocks."""
        return TENSORS[self.tensors[0]].side

    @property
    def accumulates(self) -> bool:
        """True for partial sums, False for copies of inputs."""
        return TENSORS[self.tensors[0]].accumulates


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attend(Node):
    """On rank [n], q blocks [n, a] attend to kv blocks [n, b]; the mask determines the tiles."""

    rank: Ints
    q: Ints
    kv: Ints

    def __init__(self, rank: ArrayLike, q: ArrayLike, kv: ArrayLike) -> None:
        self._set_columns({"rank": rank}, {"q": q, "kv": kv})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Move(Carrying):
    """One message per row: rank src [n] sends blocks [n, w] of each tensor to rank dst [n].

    Drops rows with src = dst and rows without a block.
    """

    tensors: tuple[str, ...]
    blocks: Ints
    src: Ints
    dst: Ints

    def __init__(
        self, tensors: Sequence[str], blocks: ArrayLike, src: ArrayLike, dst: ArrayLike
    ) -> None:
        object.__setattr__(self, "tensors", _names(tensors))
        self._set_columns({"src": src, "dst": dst}, {"blocks": blocks})

    def flat(self) -> tuple[Index, Index, Index]:
        """Returns (block, src, dst), one entry per block that travels."""
        row, column = np.nonzero(self.blocks >= 0)
        block, src, dst = self.blocks[row, column], self.src[row], self.dst[row]
        return block.astype(np.intp), src.astype(np.intp), dst.astype(np.intp)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InitialCopy(Carrying):
    """Copies of blocks [n, w] of each tensor that rank [n] holds before step 0.

    The tensors are inputs or, in a backward pass, OUT: the finished result, which is read-only.
    """

    tensors: tuple[str, ...]
    blocks: Ints
    rank: Ints

    def __init__(self, tensors: Sequence[str], blocks: ArrayLike, rank: ArrayLike) -> None:
        object.__setattr__(self, "tensors", _names(tensors))
        if self.accumulates and self.tensors != ("OUT",):
            raise PlanError(f"initial copies must be of inputs or OUT, not {self.tensors[0]}")
        self._set_columns({"rank": rank}, {"blocks": blocks})

    def flat(self) -> tuple[Index, Index]:
        """Returns (block, rank), one entry per copy."""
        rank, block = flatten_blocks(self.rank, self.blocks)
        return block, rank


def _names(tensors: Sequence[str]) -> tuple[str, ...]:
    names = as_tuple_of(str, tensors, "tensors")
    if not names or len(set(names)) < len(names):
        raise PlanError(f"a message must name each of its tensors once, not {brief(names)}")
    if unknown := [t for t in names if t not in TENSORS]:
        raise PlanError(f"unknown tensor {brief(unknown[0])}: choose one of {', '.join(TENSORS)}")
    if len({(TENSORS[t].side, TENSORS[t].accumulates) for t in names}) > 1:
        raise PlanError(f"a message must carry tensors of one side and one kind, not {names}")
    return names


@dataclass(frozen=True, slots=True)
class Step:
    """The attends and moves of one step, which do not depend on each other; drops empty nodes."""

    attends: tuple[Attend, ...] = ()
    moves: tuple[Move, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in (("attends", Attend), ("moves", Move)):
            nodes = as_tuple_of(kind, getattr(self, name), name)
            object.__setattr__(self, name, tuple(filter(len, nodes)))

    def __bool__(self) -> bool:
        return bool(self.attends or self.moves)

    def joined(self) -> "Step":
        """Returns the step with its attends joined, and its moves joined by tensors."""
        kinds = dict.fromkeys(move.tensors for move in self.moves)
        moves = (Move.joined([m for m in self.moves if m.tensors == kind]) for kind in kinds)
        return Step((Attend.joined(self.attends),) if self.attends else (), tuple(moves))

    def __repr__(self) -> str:
        attends, messages = (sum(map(len, nodes)) for nodes in (self.attends, self.moves))
        return describe(self, attends + messages, f"of {attends} attends and {messages} messages")


@dataclass(frozen=True)
class Plan:
    """The steps that compute one pass of a workload on some ranks.

    `buffers` limits, per tensor, the blocks of other owners that a rank may hold at a time,
    including arriving blocks. Drops empty steps. Raises PlanError for inconsistent names, ranks or
    block numbers.
    """

    name: str
    workload: Workload
    ranks: int
    partition: Partition
    pass_: Pass
    start: tuple[InitialCopy, ...]
    buffers: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        steps = as_tuple_of(Step, self.steps, "steps")
        object.__setattr__(self, "steps", tuple(filter(None, steps)))
        object.__setattr__(self, "start", as_tuple_of(InitialCopy, self.start, "start"))
        if self.pass_ not in INPUTS:
            raise PlanError(f"pass_ must be forward or backward, not {brief(self.pass_)}")
        check_request(self.workload, self.ranks, "a plan")
        as_tuple_of(Partition, (self.partition,), "partition")
        self.partition.check(self.workload, self.ranks)
        check_places(self.ranks, max(len(self.partition.q), len(self.partition.kv)))
        for tensor, slots in self.buffers:
            if tensor not in CARRIED[self.pass_] or slots < 0:
                raise PlanError(f"no {tensor} buffers of {slots} slots in a {self.pass_} plan")
        for copies in self.start:
            self._check_node("start", copies)
        for number, step in enumerate(self.steps):
            nodes: tuple[Attend | Move, ...] = (*step.moves, *step.attends)
            for node in nodes:
                self._check_node(f"step {number}", node)

    def _check_node(self, place: str, node: Attend | Move | InitialCopy) -> None:
        if isinstance(node, Attend):
            self._check_blocks(place, "Q", node.q)
            self._check_blocks(place, "KV", node.kv)
        else:
            known = INITIAL if isinstance(node, InitialCopy) else CARRIED
            if unknown := [t for t in node.tensors if t not in known[self.pass_]]:
                raise PlanError(f"{place}: no {unknown[0]} in a {self.pass_} plan")
            self._check_blocks(place, node.tensors[0], node.blocks)
        for ranks in (node.src, node.dst) if isinstance(node, Move) else (node.rank,):
            if ranks.size and ranks.view(np.uint32).max() >= self.ranks:  # negatives become large
                rank = ranks[(ranks < 0) | (ranks >= self.ranks)][0]
                raise PlanError(f"{place}: rank {rank}, but ranks are 0..{self.ranks - 1}")

    def _check_blocks(self, place: str, tensor: str, blocks: Ints) -> None:
        count = len(self.side(tensor))
        if blocks.size and blocks.max() >= count:
            raise PlanError(f"{place}: {tensor} block {blocks.max()}, but there are {count}")

    def side(self, tensor: str) -> Side:
        """Returns the blocks of a tensor's side."""
        return self.partition.side(TENSORS[_names(tensor)[0]].side)

    def block_bytes(self, tensor: str, finished: bool = False) -> NDArray[np.int64]:
        """Returns the bytes of each block of a tensor, over the whole batch: int64 [blocks].

        `finished` results have the input dtype, and so does OUT in a backward pass.
        """
        side, is_result = self.side(tensor), (tensor, self.pass_) == ("OUT", "backward")
        size = TENSORS[tensor].bytes_per_token(self.workload, finished or is_result)
        return side.sizes * side.head_counts * size

    @property
    def rounds(self) -> int:
        """Number of steps with attends."""
        return sum(bool(step.attends) for step in self.steps)

    @property
    def rows(self) -> int:
        """Number of rows of all attends and moves."""
        return sum(len(a) for _, a in self.attends()) + sum(len(m) for _, m in self.moves())

    def moves(self) -> Iterator[tuple[int, Move]]:
        """Yields every move with the number of its step."""
        return ((n, move) for n, step in enumerate(self.steps) for move in step.moves)

    def attends(self) -> Iterator[tuple[int, Attend]]:
        """Yields every attend with the number of its step."""
        return ((n, attend) for n, step in enumerate(self.steps) for attend in step.attends)

    def __repr__(self) -> str:
        size = max(self.rows, len(self.partition.q), len(self.partition.kv))
        counts = f"{self.ranks} ranks, {self.rounds} rounds, {self.rows} rows"
        return describe(self, size, f"{self.name} {self.pass_}: {counts}")
