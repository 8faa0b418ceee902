"""Functions on columns and tables of integers: indexing, stacking, flattening, duplicates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]


def as_index(numbers: NDArray[Any]) -> Index:
    """Returns integers as intp, since numpy is 3 to 10 times slower with 32-bit indices."""
    return numbers.astype(np.intp)


def count_present(blocks: NDArray[Any]) -> int:
    """Counts the blocks in a table [n, w] padded with -1; a single column has no padding."""
    return int(blocks.size if blocks.shape[1] == 1 else np.count_nonzero(blocks >= 0))


def row_index(rows: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """Returns an index for the True rows: a slice, which avoids a copy, if contiguous."""
    first, count = int(rows.argmax()) if rows.size else 0, int(np.count_nonzero(rows))
    return slice(first, first + count) if rows[first : first + count].all() else rows


def take_rows(table: NDArray[Any], rows: Index) -> NDArray[Any]:
    """Returns rows of a table by number: a view, which avoids a copy, if contiguous."""
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    if last - first == len(rows) - 1 and (rows[1:] > rows[:-1]).all():
        return table[first : last + 1]
    return table.take(rows, axis=0)


def hstack(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Joins tables [n, w] of the same rows side by side."""
    return tables[0] if len(tables) == 1 else np.hstack(tables)


def flatten_blocks(rank: NDArray[Any], blocks: NDArray[Any]) -> tuple[Index, Index]:
    """Returns the rank and the number of each block in a table [n, w] with one rank per row."""
    if (blocks >= 0).all():
        return rank.astype(np.intp).repeat(blocks.shape[1]), blocks.reshape(-1).astype(np.intp)
    row, column = np.nonzero(blocks >= 0)
    return rank[row].astype(np.intp), blocks[row, column].astype(np.intp)


def distinct_values(numbers: NDArray[Any]) -> Index:
    """Returns the distinct integers, ascending; faster than np.unique for ranks and steps."""
    if not numbers.size:
        return np.zeros(0, np.intp)
    low = int(numbers.min())
    return np.flatnonzero(np.bincount(numbers - low)) + low


def ragged_index(counts: NDArray[np.integer]) -> tuple[Index, Index]:
    """Returns (row, column) of the first counts[row] entries of each row, row by row."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def group_entries(group: NDArray[np.integer], count: int) -> NDArray[np.int32]:
    """Returns the entries of each group: [count, most], padded with -1, column-major."""
    order, counts = np.argsort(group, kind="stable"), np.bincount(group, minlength=count)
    table = np.full((int(counts.max(initial=0)), count), -1, np.int32).T
    table[ragged_index(counts)] = order
    return table


def vstack_padded(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenates columns [n], or tables [n, w] of any width padded with -1."""
    if len(tables) == 1:
        return tables[0]
    if tables[0].ndim == 2:
        width = max(table.shape[1] for table in tables)
        tables = [pad_columns(table, width) for table in tables]
    return np.concatenate(tables)


def pad_columns(table: NDArray[Any], width: int) -> NDArray[Any]:
    """Pads a table [n, w] with columns of -1 up to a width."""
    padding = np.full((len(table), width - table.shape[1]), -1, table.dtype)
    return np.hstack([table, padding]) if padding.shape[1] else table


def is_repeat(keys: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Returns True for keys that occurred earlier in the column: bool [n]."""
    is_later = np.ones(len(keys), np.bool_)
    is_later[np.unique(keys, return_index=True)[1]] = False
    return is_later


def has_duplicates(keys: NDArray[np.intp]) -> bool:
    """Returns True if a key occurs more than once; fast for keys in a few ascending runs."""
    ordered = np.sort(keys, kind="stable")
    return bool((ordered[1:] == ordered[:-1]).any())
