"""Defines a case: a program, and the attention that it must compute.

    parts ::= out [dq dk dv [dsinks]] positions kv_positions     arrays that each rank returns
            | positions kv_positions                             if these are no layout
            | refusal                                            if the length is not supported

Inputs are in sequence order; every rank gets the shards at its positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw, draw_sinks

PAIRS = 1 << 28  # maximum number of pairs, over all heads, to compare with dense attention
FEWEST = 64  # minimum number of queries to compare
Layout = list[Array]  # the positions of each rank


@dataclass(frozen=True, slots=True)
class Case:
    """The text of a program, and how to judge it.

    `backward`: compare gradients, too. `dynamic`: attention takes tables. `memory`: bytes of all
    ranks together. `until`: the deadline of the ranks, by `time.monotonic`.
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
        """Returns the queries to compare, ascending: all, or a sample of a long sequence."""
        most = max(FEWEST, PAIRS // (self.work.batch * self.work.heads * self.work.kv_seq))
        if most >= self.work.seq:
            return np.arange(self.work.seq)
        random = np.random.default_rng([self.seed, 3])
        return np.sort(random.choice(self.work.seq, most, replace=False))

    def inputs(self) -> list[Array]:
        """Draws q, k, v, dout and sinks; dout is 0 at queries that are not compared."""
        q, k, v, dout = draw(self.work, self.seed)
        chosen = np.zeros(self.work.seq, bool)
        chosen[self.rows()] = True
        dout[:, :, ~chosen] = 0
        sinks = draw_sinks(self.work, self.seed)
        return [q, k, v, dout, *([] if sinks is None else [sinks])]


def layouts(program: Any, case: Case, tables: Sequence[Any]) -> tuple[Layout, Layout]:
    """Returns the positions of queries and of keys on every rank according to the program."""
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
    """Returns why positions are no layout of the tokens, or "" if they are.

    In a layout, every position occurs exactly once; in a `padded` one, padding has -1.
    """
    seen = np.full(tokens, -1)
    for rank, places in enumerate(layout):
        if places.ndim != 1 or places.dtype.kind not in "iu":
            return f"the positions of rank {rank} are not a list of whole numbers"
        own = places[places != -1] if padded else places
        if wrong := own[(own < 0) | (own >= tokens)][:1].tolist():
            return f"rank {rank} has position {wrong[0]} of {tokens} tokens"
        order = np.sort(own)
        if repeated := order[1:][order[1:] == order[:-1]][:1].tolist():
            return f"rank {rank} has position {repeated[0]} twice"
        if shared := own[seen[own] >= 0][:1].tolist():
            return f"ranks {seen[shared[0]]} and {rank} both have position {shared[0]}"
        seen[own] = rank
    lost = np.flatnonzero(seen < 0)[:1].tolist()
    return f"no rank has position {lost[0]}" if lost else ""


def misplacement(case: Case, q: Layout, kv: Layout) -> str:
    """Returns what is wrong with the layout of either side, or "" if both are right."""
    padded = case.target == "jax"  # shards in JAX have equal sizes
    if len(q) != case.ranks or len(kv) != case.ranks:
        return f"there are positions of {len(q)} and {len(kv)} ranks, not of {case.ranks}"
    wrong = misplaced(q, case.work.seq, padded)
    wrong_kv = misplaced(kv, case.work.kv_seq, padded)
    return f"of queries, {wrong}" if wrong else f"of keys, {wrong_kv}" if wrong_kv else ""
