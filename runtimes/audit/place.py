"""Describes the rows and columns of a matrix of queries by keys, and its expected values."""

from dataclasses import dataclass

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Positions, ranks and local indices of a matrix's rows of queries and columns of keys.

    `rows`: slots that hold a query. `wanted`: allowed pairs. Columns after all positions are
    padding.
    """

    rows: Ints
    queries: Ints
    query_ranks: Ints
    query_indices: Ints
    keys: Ints
    key_ranks: Ints
    key_indices: Ints
    tokens: int
    wanted: Array

    @property
    def padding(self) -> Array:
        """True for columns of padding: bool [columns]."""
        return np.asarray(self.keys >= self.tokens)


def place(case: Case) -> Place:
    """Returns the description of the matrices of a case."""
    q, kv, work = case.side("q"), case.side("kv"), case.work
    rows = np.flatnonzero(q.positions >= 0)
    rows = rows[np.argsort(q.positions[rows])]
    first, keys = kv.first_slots(), np.arange(kv.width)
    wanted = np.zeros((len(rows), kv.width), bool)
    wanted[:, : work.kv_seq] = work.allowed(q.positions[rows], keys[: work.kv_seq])
    own = q.locals()[rows], kv.locals()[first]
    ranks = q.ranks[rows], kv.ranks[first]
    return Place(
        rows, q.positions[rows], ranks[0], own[0], keys, ranks[1], own[1], work.kv_seq, wanted
    )
