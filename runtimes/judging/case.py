"""Case   one judgement: a program, and the attention that it must compute.

    parts ::= out [dq dk dv [dsinks]] positions kv_positions     what each rank answers, as arrays
            | positions kv_positions                             where these are no layout
            | refusal                                            where it takes no such length

Inputs are in sequence order; every rank gets the shards at its positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw, draw_sinks

PAIRS = 1 << 28  # of all heads, that are compared with dense attention at most
FEWEST = 64  # queries that are compared at least
Layout = list[Array]  # the positions of each rank


@dataclass(frozen=True, slots=True)
class Case:
    """A program by its text, and how it is judged.

    `backward`: gradients are judged, too. `dynamic`: attention takes tables. `memory`: bytes of
    all ranks together. `until`: the `time.monotonic` at which ranks are to be done.
    """

    source: str
    target: str
    ranks: int
    work: Workload
    backward: bool
    dynamic: bool
    seed: int
    memory: int
    until: float

    def rows(self) -> Array:
        """Returns the queries that are compared, ascending: all, or some of a long sequence."""
        most = max(FEWEST, PAIRS // (self.work.batch * self.work.heads * self.work.kv_seq))
        if most >= self.work.seq:
            return np.arange(self.work.seq)
        random = np.random.default_rng([self.seed, 3])
        return np.sort(random.choice(self.work.seq, most, replace=False))

    def inputs(self) -> list[Array]:
        """Draws q, k, v and dout, which is 0 at queries that are not compared; and sinks."""
        q, k, v, dout = draw(self.work, self.seed)
        chosen = np.zeros(self.work.seq, bool)
        chosen[self.rows()] = True
        dout[:, :, ~chosen] = 0
        sinks = draw_sinks(self.work, self.seed)
        return [q, k, v, dout, *([] if sinks is None else [sinks])]


def layouts(program: Any, case: Case, tables: Sequence[Any]) -> tuple[Layout, Layout]:
    """Returns the positions of queries and of keys on every rank, as the program says them."""
    kv_positions = getattr(program, "kv_positions", program.positions)
    sides = (program.positions, case.work.seq), (kv_positions, case.work.kv_seq)
    by_tables = case.dynamic and case.target == "torch"
    q, kv = (
        [
            np.asarray(place(rank, *(tables if by_tables else [tokens])))
            for rank in range(case.ranks)
        ]
        for place, tokens in sides
    )
    return q, kv


def misplaced(layout: Layout, tokens: int, padded: bool) -> str:
    """Returns a sentence on why positions are not a layout of tokens, "" where they are.

    Every position is on one rank, once; of a `padded` layout, places of padding have -1.
    """
    seen = np.full(tokens, -1)
    for rank, places in enumerate(layout):
        if places.ndim != 1 or places.dtype.kind not in "iu":
            return f"the positions of rank {rank} are not a list of whole numbers"
        own = places[places != -1] if padded else places
        if wrong := own[(own < 0) | (own >= tokens)][:1].tolist():
            return f"rank {rank} has position {wrong[0]} of {tokens} tokens"
        order = np.sort(own)
        if again := order[1:][order[1:] == order[:-1]][:1].tolist():
            return f"rank {rank} has position {again[0]} twice"
        if shared := own[seen[own] >= 0][:1].tolist():
            return f"ranks {seen[shared[0]]} and {rank} both have position {shared[0]}"
        seen[own] = rank
    lost = np.flatnonzero(seen < 0)[:1].tolist()
    return f"no rank has position {lost[0]}" if lost else ""


def misplacement(case: Case, q: Layout, kv: Layout) -> str:
    """Returns what is wrong with the layout of either side, "" if nothing is."""
    padded = case.target == "jax"  # whose shards are all of one size
    if len(q) != case.ranks or len(kv) != case.ranks:
        return f"there are positions of {len(q)} and {len(kv)} ranks, not of {case.ranks}"
    wrong = misplaced(q, case.work.seq, padded)
    wrong_kv = misplaced(kv, case.work.kv_seq, padded)
    return f"of queries, {wrong}" if wrong else f"of keys, {wrong_kv}" if wrong_kv else ""
