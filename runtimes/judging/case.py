"""Defines a case: a program, and the attention that it must compute.

    parts ::= out [dq dk dv [dsinks]] positions kv_positions     arrays that each rank returns
            | positions kv_positions                             if they do not form a layout
            | refusal                                            if the length is not supported

Inputs are in sequence order; every rank gets the shards at its positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw, draw_sinks

MAX_PAIRS = 1 << 28  # pairs, over all heads, to compare with dense attention
MIN_QUERIES = 64  # queries to compare
Layout = list[Array]  # the positions of each rank


@dataclass(frozen=True, slots=True)
class Case:
    """The text of a program, and the settings for judging it.

    `backward`: also compare gradients. `dynamic`: `attention` takes tables. `memory`: bytes of all
    ranks together. `deadline`: of the ranks, by `time.monotonic`.
    """

    source: str
    target: str
    ranks: int
    work: Workload
    backward: bool
    dynamic: bool
    seed: int
    memory: int
    deadline: float

    def rows(self) -> Array:
        """Returns the queries to compare, ascending: all, or a sample of a long sequence."""
        pairs_per_query = self.work.batch * self.work.heads * self.work.kv_seq
        number = max(MIN_QUERIES, MAX_PAIRS // pairs_per_query)
        if number >= self.work.seq:
            return np.arange(self.work.seq)
        random = np.random.default_rng([self.seed, 3])
        return np.sort(random.choice(self.work.seq, number, replace=False))

    def inputs(self) -> list[Array]:
        """Draws q, k, v, dout and sinks; dout is 0 at queries that are not compared."""
        q, k, v, dout = draw(self.work, self.seed)
        is_compared = np.zeros(self.work.seq, bool)
        is_compared[self.rows()] = True
        dout[:, :, ~is_compared] = 0
        sinks = draw_sinks(self.work, self.seed)
        return [q, k, v, dout, *([] if sinks is None else [sinks])]


def layouts(program: Any, case: Case, tables: Sequence[Any]) -> tuple[Layout, Layout]:
    """Returns the positions of queries and keys on every rank according to the program."""
    kv_positions = getattr(program, "kv_positions", program.positions)
    sides = (program.positions, case.work.seq), (kv_positions, case.work.kv_seq)
    by_tables = case.dynamic and case.target == "torch"
    q, kv = (
        [
            np.asarray(positions_of(rank, *(tables if by_tables else [tokens])))
            for rank in range(case.ranks)
        ]
        for positions_of, tokens in sides
    )
    return q, kv


def layout_error(layout: Layout, tokens: int, padded: bool) -> str:
    """Returns why positions do not form a layout of the tokens, or "" if they do.

    In a layout every position occurs exactly once; with `padded`, padding has position -1.
    """
    owners = np.full(tokens, -1)
    for rank, shard in enumerate(layout):
        if shard.ndim != 1 or shard.dtype.kind not in "iu":
            return f"the positions of rank {rank} are not a list of integers"
        positions = shard[shard != -1] if padded else shard
        if wrong := positions[(positions < 0) | (positions >= tokens)][:1].tolist():
            return f"rank {rank} has position {wrong[0]}, but there are {tokens} tokens"
        order = np.sort(positions)
        if repeated := order[1:][order[1:] == order[:-1]][:1].tolist():
            return f"rank {rank} has position {repeated[0]} twice"
        if shared := positions[owners[positions] >= 0][:1].tolist():
            return f"ranks {owners[shared[0]]} and {rank} both have position {shared[0]}"
        owners[positions] = rank
    missing = np.flatnonzero(owners < 0)[:1].tolist()
    return f"no rank has position {missing[0]}" if missing else ""


def layouts_error(case: Case, q: Layout, kv: Layout) -> str:
    """Returns the error of the layout of queries or keys, or "" if both are correct."""
    padded = case.target == "jax"  # shards in JAX have equal sizes
    if len(q) != case.ranks or len(kv) != case.ranks:
        return f"there are positions of {len(q)} and {len(kv)} ranks, not of {case.ranks}"
    q_error = layout_error(q, case.work.seq, padded)
    kv_error = layout_error(kv, case.work.kv_seq, padded)
    return f"of queries, {q_error}" if q_error else f"of keys, {kv_error}" if kv_error else ""
