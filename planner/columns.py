"""Helpers for columns of integers and bits: indexing, stacking, flattening, duplicates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]


def index(numbers: NDArray[Any]) -> Index:
    """Returns integers as intp: numpy indexes 3 to 10 times slower with 32-bit integers."""
    return numbers.astype(np.intp)


def count_present(blocks: NDArray[Any]) -> int:
    """Returns the number of blocks in a table [n, w] padded with -1; one column has no padding."""
    return int(blocks.size if blocks.shape[1] == 1 else np.count_nonzero(blocks >= 0))


def row_index(rows: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """Returns an index for the marked rows: a slice, which copies nothing, if contiguous."""
    first, count = int(rows.argmax()) if rows.size else 0, int(np.count_nonzero(rows))
    return slice(first, first + count) if rows[first : first + count].all() else rows


def take_rows(table: NDArray[Any], rows: Index) -> NDArray[Any]:
    """Returns rows of a table by number: a view, which copies nothing, if contiguous."""
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    if last - first == len(rows) - 1 and (rows[1:] > rows[:-1]).all():
        return table[first : last + 1]
    return table.take(rows, axis=0)


def hstack(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns tables [n, w] of the same rows side by side."""
    return tables[0] if len(tables) == 1 else np.hstack(tables)


def flat(rank: NDArray[Any], blocks: NDArray[Any]) -> tuple[Index, Index]:
    """Returns the rank of its row, and the number, of each block of a table [n, w]."""
    if (blocks >= 0).all():
        return rank.astype(np.intp).repeat(blocks.shape[1]), blocks.reshape(-1).astype(np.intp)
    row, column = np.nonzero(blocks >= 0)
    return rank[row].astype(np.intp), blocks[row, column].astype(np.intp)


def distinct(numbers: NDArray[Any]) -> Index:
    """Returns the distinct integers, ascending; faster than np.unique for ranks and steps."""
    if not numbers.size:
        return np.zeros(0, np.intp)
    low = int(numbers.min())
    return np.flatnonzero(np.bincount(numbers - low)) + low


def ragged(counts: NDArray[np.integer]) -> tuple[Index, Index]:
    """Returns (which, place), with place from 0 to counts[which] - 1 for each entry in turn."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def by_group(group: NDArray[np.integer], count: int) -> NDArray[np.int32]:
    """Returns the entries of each group: [count, widest], padded with -1, column-major."""
    order, counts = np.argsort(group, kind="stable"), np.bincount(group, minlength=count)
    table = np.full((int(counts.max(initial=0)), count), -1, np.int32).T
    table[ragged(counts)] = order
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
    """Returns which keys occurred earlier in the column: bool [n]."""
    repeated = np.ones(len(keys), np.bool_)
    repeated[np.unique(keys, return_index=True)[1]] = False
    return repeated


def has_duplicates(keys: NDArray[np.intp]) -> bool:
    """Returns True if a key occurs more than once; fast for a few ascending runs of keys."""
    ordered = np.sort(keys, kind="stable")
    return bool((ordered[1:] == ordered[:-1]).any())
