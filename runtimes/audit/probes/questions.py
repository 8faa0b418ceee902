"""Describes the inputs of a call in a few numbers, from which every rank fills its arrays.

    question ::= Question(q, k, v, dout)      sums of fills; dout None: only a forward pass
    fill     ::= Indicators | Level | Bins | Codes | Noise

An indicator writes a number at one dimension of one column, so a slice of n columns takes n
dimensions, or fewer if several columns share a dimension. Padding has its own columns and is filled
like tokens.
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
    """A fill that writes `amounts[n]` at dimension `dim` + n // `size` of column `start` + n."""

    start: int
    dim: int
    amounts: NDArray[np.float64]
    size: int = 1

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        number = columns - self.start
        slots = np.flatnonzero((number >= 0) & (number < len(self.amounts)))
        number = number[slots]
        array[:, :, slots, self.dim + number // self.size] += self.amounts[number]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A fill that writes `values[column]` at dimension `dim` of every column."""

    values: NDArray[np.float64]
    dim: int

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        array[:, :, :, self.dim] += self.values[columns]


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """A fill that writes 1 at dimension `bins[column]`, unless that is negative."""

    bins: NDArray[np.int64]

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        slots = np.flatnonzero(self.bins[columns] >= 0)
        array[:, :, slots, self.bins[columns[slots]]] += 1


@dataclass(frozen=True, slots=True)
class Codes:
    """A fill that writes 1 at dimension n of lane `start` + n; a lane is a batch row and a head."""

    start: int

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        batch, heads, _, dim = array.shape
        for lane in range(self.start, min(self.start + dim, batch * heads)):
            array[lane // heads, lane % heads, :, lane - self.start] += 1


@dataclass(frozen=True, slots=True)
class Noise:
    """A fill of standard normal numbers from a stream of the seed."""

    seed: int
    stream: int

    def add(self, array: Array, columns: Ints, side: Side, work: Workload) -> None:
        """Adds the fill to an array [batch, heads, slots, dimension] of some slots."""
        random = np.random.default_rng([self.seed, self.stream])
        batch, heads, _, dim = array.shape
        array += random.standard_normal((batch, heads, side.width, dim))[:, :, columns]


Fill = Indicators | Level | Bins | Codes | Noise
Fills = tuple[Fill, ...]
FORMS = {
    "transposed": "with inputs that are transposes of [batch, tokens, heads, head_dim]",
    "expanded": "with an expanded dout, whose strides are 0",
}


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs of a call; an empty tuple means zeros.

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
    """The results of a call on all slots: float64 or float32 [batch, heads, slots, dimension].

    `complaints`: about ranks with wrong results. `traffic`: bytes sent by (pass, source,
    destination), None if not counted. `backward`: a rank raised an error in its backward pass.
    """

    out: Array
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None
    complaints: tuple[tuple[int, str, str], ...] = ()  # rank, kind, sentence
    traffic: dict[tuple[str, int, int], int] | None = None
    backward: bool = False

    def gradient(self, name: str) -> Array:
        """Returns dq, dk or dv; raises AttributeError if there is none."""
        array = getattr(self, name)
        if array is None:
            raise AttributeError(f"the question had no cotangent: no {name}")
        return np.asarray(array)


def inputs(case: Case, question: Question, rank: int | None = None) -> dict[str, Array]:
    """Returns the filled arrays q, k, v, and dout if any, of a rank or of all slots."""
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
        if name == "dout":  # padding has no loss
            array[:, :, side.positions[slots] < 0] = 0
        arrays[name] = array.astype(dtype_of(work.dtype))
    return arrays
