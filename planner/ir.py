"""plan    ::= Plan(name, workload, ranks, partition, pass_, start, buffers, steps)
step    ::= Step(attends, moves)         moves read what attends of this step do not yet change
attend  ::= Attend(rank, q, kv)          a rectangle: q blocks x kv blocks, on one rank
move    ::= Move(tensors, blocks, src, dst)   one message per row
held    ::= InitialCopy(tensors, blocks, rank)  copies that are already elsewhere before step 0
tensor  ::= Q DOUT STATS OUT DQ (query side) | KV DKV (KV side)

By columns: a node holds small-integer arrays over its rows, -1 for "no block"; never an object
per device. In a step: (1) every move reads its source as it was at the step's start: an input is
copied, an accumulator is transferred (removed); (2) attends read inputs as they were at the step's
start; (3) what attends produce, then what arrives, is added, in node order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringloom.planner.columns import chosen, flat, stacked
from ringloom.planner.errors import PlanError, brief, each
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import SMALL, Ints, Partition, Side, check_places, printed
from ringloom.planner.workload import DTYPES, Workload, check_request

Pass = Literal["forward", "backward"]
Dim = Literal["head_dim", "v_head_dim"]  # a field of the workload
Index = NDArray[np.intp]
Rows = NDArray[np.bool_] | np.bool_


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a plan: per token and head, vectors of some dimensions, and `scalars`."""

    side: SideName
    accumulates: bool
    vectors: tuple[Dim, ...]
    scalars: int = 0
    wide: bool = False  # kept in 32 bit (64 for float64 inputs), whatever the inputs' dtype

    def elements(self, work: Workload) -> int:
        """Elements of the vectors of one token and head."""
        return sum(getattr(work, dim) for dim in self.vectors)

    def bytes_per_token(self, work: Workload, finished: bool = False) -> int:
        """Bytes per token and head of the tensor's own head count, all batch rows together.

        The vectors of a finished sum are rounded to the inputs' dtype.
        """
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
HELD: dict[Pass, tuple[str, ...]] = INPUTS | {"backward": (*INPUTS["backward"], "OUT")}
QUERY_SIDE: dict[Pass, tuple[str, ...]] = {"forward": ("Q",), "backward": ("Q", "DOUT", "STATS")}


def result(pass_: Pass) -> str:
    """The accumulator of the query side."""
    return ACCUMULATORS[pass_][0]


def _column(values: ArrayLike, what: str) -> Ints:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(array.shape, np.int32)
    if array.dtype.kind not in "iu":
        raise PlanError(f"{what} must be whole numbers, not {array.dtype}")
    if array.dtype != np.int32:
        if array.min() < -1 or array.max() > np.iinfo(np.int32).max:
            raise PlanError(f"{what} out of range: {array.min()}..{array.max()}")
        array = array.astype(np.int32)
    array = array.view()
    array.flags.writeable = False
    return array


def _bundle(values: ArrayLike, rows: int, what: str) -> tuple[Ints, Rows]:
    """Blocks per row as [rows, width], and which rows hold one: True where every place does."""
    table = _column(values, what)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or len(table) != rows:
        raise PlanError(f"{what}: {rows} rows need a [{rows}, width] table, not {table.shape}")
    low = table.min(initial=0)
    if table.size and low == 0:
        return table, np.True_
    if low < -1:
        raise PlanError(f"{what} out of range: {low}; -1 stands for no block")
    return table, (table >= 0).any(axis=1)


def _rows(values: ArrayLike, what: str) -> Ints:
    column = _column(values, what)
    if column.ndim != 1:
        raise PlanError(f"{what} must be one number per row, not shape {column.shape}")
    return column


def _value(field: Any) -> Any:
    return field.tobytes() if isinstance(field, np.ndarray) else field  # all of as many rows


class Node:
    """Columns over rows, which compare by value and print as Python.

    Columns of ranks are [n], tables of blocks [n, w] with -1 for none. A row that lacks a block in
    one of the tables is dropped, then a place of a table that is empty in all rows that are left.
    """

    __slots__: tuple[str, ...] = ()

    def _put(self, ranks: dict[str, ArrayLike], tables: dict[str, ArrayLike]) -> None:
        kind = type(self).__name__.lower()
        columns = {name: _rows(values, f"{kind}: {name}") for name, values in ranks.items()}
        first, *others = columns.values()
        kept: Rows = np.True_
        for other in others:
            if len(first) != len(other):
                raise PlanError(f"{kind}: {len(first)} sources but {len(other)} destinations")
            kept = first != other
        for name, values in tables.items():
            columns[name], present = _bundle(values, len(first), f"{kind}: {name}")
            kept = kept & present
        rows = chosen(kept) if isinstance(kept, np.ndarray) and not kept.all() else None
        for name, column in columns.items():
            object.__setattr__(self, name, _part(column, rows))

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def only(self, rows: NDArray[Any] | slice) -> Self:
        """Returns some of the rows, by their numbers or marked: bool [n]."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = chosen(rows)
        return type(self)(*(f[rows] if isinstance(f, np.ndarray) else f for f in self._fields()))

    @classmethod
    def joined(cls, nodes: Sequence[Self]) -> Self:
        """Returns the rows of several nodes, of the same tensors, as one."""
        if len(nodes) == 1:
            return nodes[0]
        columns = zip(*(node._fields() for node in nodes), strict=True)
        return cls(*(stacked(c) if isinstance(c[0], np.ndarray) else c[0] for c in columns))

    def __len__(self) -> int:
        return len(getattr(self, self.__slots__[-1]))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return [*map(_value, self._fields())] == [*map(_value, other._fields())]

    def __hash__(self) -> int:
        return hash((type(self).__name__, *map(_value, self._fields())))

    def __repr__(self) -> str:
        if len(self) > SMALL:
            return f"<{type(self).__name__} of {len(self)} rows>"
        parts = (f.tolist() if isinstance(f, np.ndarray) else f for f in self._fields())
        return f"{type(self).__name__}({', '.join(map(repr, parts))})"


def _part(column: Ints, rows: NDArray[np.bool_] | slice | None) -> Ints:
    """Returns some rows of a column, a table without the places that are empty in all of them."""
    part = column if rows is None else column[rows]
    if part.ndim == 2 and part.min(initial=0) < 0:
        used = np.array([place.max(initial=-1) >= 0 for place in part.T])
        part = part if used.all() else part[:, chosen(used)]
    return part


class Carrying(Node):
    """Blocks of tensors of one side and one kind."""

    __slots__ = ()
    tensors: tuple[str, ...]

    @property
    def side(self) -> SideName:
        """The side of the blocks."""
        return TENSORS[self.tensors[0]].side

    @property
    def accumulates(self) -> bool:
        """Returns True for partial sums, False for copies of inputs."""
        return TENSORS[self.tensors[0]].accumulates


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attend(Node):
    """On `rank` [n], q blocks [n, a] attend kv blocks [n, b]; tiles follow from the mask."""

    rank: Ints
    q: Ints
    kv: Ints

    def __init__(self, rank: ArrayLike, q: ArrayLike, kv: ArrayLike) -> None:
        self._put({"rank": rank}, {"q": q, "kv": kv})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Move(Carrying):
    """One message per row: `blocks` [n, w] of each of `tensors` go from `src` [n] to `dst` [n].

    Rows with src = dst or without a block are dropped.
    """

    tensors: tuple[str, ...]
    blocks: Ints
    src: Ints
    dst: Ints

    def __init__(
        self, tensors: Sequence[str], blocks: ArrayLike, src: ArrayLike, dst: ArrayLike
    ) -> None:
        object.__setattr__(self, "tensors", _names(tensors))
        self._put({"src": src, "dst": dst}, {"blocks": blocks})

    def flat(self) -> tuple[Index, Index, Index]:
        """(block, src, dst), one entry per block that travels."""
        row, column = np.nonzero(self.blocks >= 0)
        block, src, dst = self.blocks[row, column], self.src[row], self.dst[row]
        return block.astype(np.intp), src.astype(np.intp), dst.astype(np.intp)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InitialCopy(Carrying):
    """Initial copies: `blocks` [n, w] of each tensor, resident on `rank` [n] before step 0.

    Of inputs, and in a backward pass of OUT: the finished result, to read and not to add to.
    """

    tensors: tuple[str, ...]
    blocks: Ints
    rank: Ints

    def __init__(self, tensors: Sequence[str], blocks: ArrayLike, rank: ArrayLike) -> None:
        object.__setattr__(self, "tensors", _names(tensors))
        if self.accumulates and self.tensors != ("OUT",):
            raise PlanError(f"{self.tensors[0]} is an accumulator: only inputs and OUT can be held")
        self._put({"rank": rank}, {"blocks": blocks})

    def flat(self) -> tuple[Index, Index]:
        """(block, rank), one entry per copy."""
        rank, block = flat(self.rank, self.blocks)
        return block, rank


def _names(tensors: Sequence[str]) -> tuple[str, ...]:
    names = each(str, tensors, "tensors")
    if not names or len(set(names)) < len(names):
        raise PlanError(f"a message names its tensors once each, not {brief(names)}")
    if unknown := [t for t in names if t not in TENSORS]:
        raise PlanError(f"unknown tensor {brief(unknown[0])}: choose among {', '.join(TENSORS)}")
    if len({(TENSORS[t].side, TENSORS[t].accumulates) for t in names}) > 1:
        raise PlanError(f"one message carries tensors of one side and one kind, not {names}")
    return names


@dataclass(frozen=True, slots=True)
class Step:
    """One step: moves and attends that do not depend on each other; empty nodes are dropped."""

    attends: tuple[Attend, ...] = ()
    moves: tuple[Move, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in (("attends", Attend), ("moves", Move)):
            nodes = each(kind, getattr(self, name), name)
            object.__setattr__(self, name, tuple(filter(len, nodes)))

    def __bool__(self) -> bool:
        return bool(self.attends or self.moves)

    def joined(self) -> "Step":
        """Returns the step with one attend, and one move of the same tensors."""
        kinds = dict.fromkeys(move.tensors for move in self.moves)
        moves = (Move.joined([m for m in self.moves if m.tensors == kind]) for kind in kinds)
        return Step((Attend.joined(self.attends),) if self.attends else (), tuple(moves))

    def __repr__(self) -> str:
        attends, messages = (sum(map(len, nodes)) for nodes in (self.attends, self.moves))
        return printed(self, attends + messages, f"of {attends} attends and {messages} messages")


@dataclass(frozen=True)
class Plan:
    """The attends and moves of one pass of one workload, step by step.

    `buffers` bounds, per tensor, the blocks of other owners that a rank may hold at once (incoming
    ones count). Empty steps are dropped. Raises PlanError where names, ranks and block numbers do
    not fit.
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
        object.__setattr__(self, "steps", tuple(filter(None, each(Step, self.steps, "steps"))))
        object.__setattr__(self, "start", each(InitialCopy, self.start, "start"))
        if self.pass_ not in INPUTS:
            raise PlanError(f"a pass is forward or backward, not {brief(self.pass_)}")
        check_request(self.workload, self.ranks, "a plan")
        each(Partition, (self.partition,), "partition")
        self.partition.check(self.workload, self.ranks)
        check_places(self.ranks, max(len(self.partition.q), len(self.partition.kv)))
        for tensor, slots in self.buffers:
            if tensor not in CARRIED[self.pass_] or slots < 0:
                raise PlanError(f"no {tensor} buffers of {slots} slots in a {self.pass_} plan")
        for held in self.start:
            self._check_node("start", held)
        for number, step in enumerate(self.steps):
            nodes: tuple[Attend | Move, ...] = (*step.moves, *step.attends)
            for node in nodes:
                self._check_node(f"step {number}", node)

    def _check_node(self, where: str, node: Attend | Move | InitialCopy) -> None:
        if isinstance(node, Attend):
            self._check_blocks(where, "Q", node.q)
            self._check_blocks(where, "KV", node.kv)
        else:
            known = HELD if isinstance(node, InitialCopy) else CARRIED
            if foreign := [t for t in node.tensors if t not in known[self.pass_]]:
                raise PlanError(f"{where}: no {foreign[0]} in a {self.pass_} plan")
            self._check_blocks(where, node.tensors[0], node.blocks)
        for ranks in (node.src, node.dst) if isinstance(node, Move) else (node.rank,):
            if ranks.size and ranks.view(np.uint32).max() >= self.ranks:  # negative ones are large
                wrong = ranks[(ranks < 0) | (ranks >= self.ranks)][0]
                raise PlanError(f"{where}: rank {wrong}, but ranks are 0..{self.ranks - 1}")

    def _check_blocks(self, where: str, tensor: str, blocks: Ints) -> None:
        have = len(self.side(tensor))
        if blocks.size and blocks.max() >= have:
            raise PlanError(f"{where}: {tensor} block {blocks.max()}, but there are {have}")

    def side(self, tensor: str) -> Side:
        """The side that a tensor's blocks belong to."""
        return self.partition.side(TENSORS[_names(tensor)[0]].side)

    def block_bytes(self, tensor: str, finished: bool = False) -> NDArray[np.int64]:
        """Bytes of each block of a tensor, all batch rows together: int64 [blocks].

        Finished sums are in the inputs' dtype, and so is OUT where the forward pass left it.
        """
        side, left = self.side(tensor), (tensor, self.pass_) == ("OUT", "backward")
        each = TENSORS[tensor].bytes_per_token(self.workload, finished or left)
        return side.sizes * side.head_counts * each

    @property
    def rounds(self) -> int:
        """The number of steps with attends."""
        return sum(bool(step.attends) for step in self.steps)

    @property
    def rows(self) -> int:
        """The number of rectangles and messages."""
        return sum(len(a) for _, a in self.attends()) + sum(len(m) for _, m in self.moves())

    def moves(self) -> Iterator[tuple[int, Move]]:
        """Yields every move with the number of its step."""
        return ((n, move) for n, step in enumerate(self.steps) for move in step.moves)

    def attends(self) -> Iterator[tuple[int, Attend]]:
        """Yields every attend with the number of its step."""
        return ((n, attend) for n, step in enumerate(self.steps) for attend in step.attends)

    def __repr__(self) -> str:
        size = max(self.rows, len(self.partition.q), len(self.partition.kv))
        about = f"{self.ranks} ranks, {self.rounds} rounds, {self.rows} rows"
        return printed(self, size, f"{self.name} {self.pass_}: {about}")
