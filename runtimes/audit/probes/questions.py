"""Describes the inputs of one call in a few numbers, from which every rank fills its arrays.

    question ::= Question(q, k, v, dout)      each a sum of fills; dout None: only a forward pass
    fill     ::= Indicators | Level | Codes | Noise

An indicator writes a number at one dimension of one column, so a slice of n columns takes n
dimensions, or fewer if several columns share one. Padding has its own columns and is filled like
tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, dtype_of
from ringloom.runtimes.audit.case import Case, Ints, Side


@dataclass(frozen=True, slots=True, eq=False)
class Indicators:
    """Writes `amounts[n]` at dimension `dim` + n // `size` of column `start` + n."""

    start: int
    dim: int
    amounts: NDArray[np.float64]
    size: int = 1

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        number = columns - self.start
        at = np.flatnonzero((number >= 0) & (number < len(self.amounts)))
        number = number[at]
        array[:, :, at, self.dim + number // self.size] += self.amounts[number]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Writes a number at dimension `dim` of every column: `values[column]`."""

    values: NDArray[np.float64]
    dim: int

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        array[:, :, :, self.dim] += self.values[columns]


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Writes `amount` at dimension `bins[column]`, unless that is negative."""

    bins: NDArray[np.int64]
    amount: float = 1.0

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        at = np.flatnonzero(self.bins[columns] >= 0)
        array[:, :, at, self.bins[columns[at]]] += self.amount


@dataclass(frozen=True, slots=True)
class Codes:
    """Writes `amount` at dimension n of lane `start` + n; a lane is a batch row and a head."""

    start: int
    amount: float = 1.0

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        batch, heads, _, dim = array.shape
        for lane in range(self.start, min(self.start + dim, batch * heads)):
            array[lane // heads, lane % heads, :, lane - self.start] += self.amount


@dataclass(frozen=True, slots=True)
class Noise:
    """Adds independent normal numbers of a stream of the seed, times `amount`."""

    seed: int
    stream: int
    amount: float = 1.0

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        array += self.whole(array.shape, side.width)[:, :, columns] * self.amount

    def whole(self, shape: tuple[int, ...], columns: int) -> Array:
        """Draws the numbers of all columns."""
        random = np.random.default_rng([self.seed, self.stream])
        return random.standard_normal((*shape[:2], columns, shape[3]))


Fill = Indicators | Level | Bins | Codes | Noise
Fills = tuple[Fill, ...]
FORMS = {
    "transposed": "with inputs that are transposes of [batch, tokens, heads, head_dim]",
    "expanded": "with an expanded dout, whose strides are 0",
}


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs of one call; no fill means zeros.

    `poison`: fill memory with NaN and free it before the call. `watch`: count messages, and compare
    inputs with copies. `form`: the strides of inputs, a key of `FORMS`. `between`: a question to
    ask between the forward and the backward pass.
    """

    q: Fills = ()
    k: Fills = ()
    v: Fills = ()
    dout: Fills | None = None
    poison: bool = False
    watch: bool = False
    form: str = ""
    between: "Question | None" = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Results of one call on all slots: float64 or float32 [batch, heads, slots, dimension].

    `said`: a sentence for each rank with wrong results. `traffic`: bytes sent by (pass, source,
    destination), None if not counted. `backward`: a rank raised an error in its backward pass.
    """

    out: Array
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None
    said: tuple[tuple[int, str, str], ...] = ()  # rank, kind, sentence
    traffic: dict[tuple[str, int, int], int] | None = None
    backward: bool = False

    def gradient(self, name: str) -> Array:
        """Returns dq, dk or dv; raises AttributeError if there is none."""
        array = getattr(self, name)
        if array is None:
            raise AttributeError(f"the question had no cotangent: no {name}")
        return np.asarray(array)


def inputs(case: Case, question: Question, rank: int | None = None) -> dict[str, Array]:
    """Fills the arrays of a rank, or of all slots: q, k, v, and dout if asked, in the dtype."""
    work, arrays = case.work, dict[str, Array]()
    dims = {"q": work.head_dim, "k": work.head_dim, "v": work.v_head_dim, "dout": work.v_head_dim}
    for name, dim in dims.items():
        fills: Any = getattr(question, name)
        if fills is None:
            continue
        side = case.side("q" if name in ("q", "dout") else "kv")
        slots = side.ranks == rank if rank is not None else np.ones(len(side.ranks), bool)
        heads = work.heads if name in ("q", "dout") else work.kv_heads
        array = np.zeros((work.batch, heads, int(slots.sum()), dim))
        for fill in fills:
            fill.add(array, side.columns[slots], side, work)
        if name == "dout":  # no loss is of padding
            array[:, :, side.positions[slots] < 0] = 0
        arrays[name] = array.astype(dtype_of(work.dtype))
    return arrays
