"""Describes the rows and columns of a matrix of queries by keys, and the expected mask."""

from dataclasses import dataclass

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The positions, ranks and local indices of rows (queries) and columns (keys) of a matrix.

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
        """True for columns that are padding: bool [columns]."""
        return np.asarray(self.keys >= self.tokens)

    def query_name(self, row: int) -> str:
        """Returns the name of the query in a row, with its rank and local index."""
        rank, index = self.query_ranks[row], self.query_indices[row]
        return f"query {self.queries[row]} (rank {rank}, row {index})"


def grid_of(case: Case) -> Grid:
    """Returns the description of the matrices of a case."""
    q, kv, work = case.side("q"), case.side("kv"), case.work
    rows = np.flatnonzero(q.positions >= 0)
    rows = rows[np.argsort(q.positions[rows])]
    first, keys = kv.first_slots(), np.arange(kv.width)
    wanted = np.zeros((len(rows), kv.width), bool)
    wanted[:, : work.kv_seq] = work.allowed(q.positions[rows], keys[: work.kv_seq])
    return Grid(
        rows=rows,
        queries=q.positions[rows],
        query_ranks=q.ranks[rows],
        query_indices=q.locals()[rows],
        keys=keys,
        key_ranks=kv.ranks[first],
        key_indices=kv.locals()[first],
        tokens=work.kv_seq,
        wanted=wanted,
    )
