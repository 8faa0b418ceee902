"""Columns of numbers and bits: laid flat, searched for equal keys."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]


def index(numbers: NDArray[Any]) -> Index:
    """Whole numbers to index with: numpy takes three to ten times as long for 32-bit ones."""
    return numbers.astype(np.intp)


def present(blocks: NDArray[Any]) -> int:
    """The number of blocks in a table [n, w] with -1 for none; a single column has no such."""
    return int(blocks.size if blocks.shape[1] == 1 else np.count_nonzero(blocks >= 0))


def chosen(rows: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """An index for the marked rows; where they are one stretch a slice, which copies nothing."""
    first, count = int(rows.argmax()) if rows.size else 0, int(np.count_nonzero(rows))
    return slice(first, first + count) if rows[first : first + count].all() else rows


def taken(table: NDArray[Any], rows: Index) -> NDArray[Any]:
    """Rows of a table by their numbers: a view, which copies nothing, of those in a row."""
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    if last - first == len(rows) - 1 and (rows[1:] > rows[:-1]).all():
        return table[first : last + 1]
    return table.take(rows, axis=0)


def beside(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Tables [n, w] of the same rows, one beside the other."""
    return tables[0] if len(tables) == 1 else np.hstack(tables)


def flat(rank: NDArray[Any], blocks: NDArray[Any]) -> tuple[Index, Index]:
    """Each block of a table [n, w] beside the rank [n] of its row, absent blocks left out."""
    if (blocks >= 0).all():
        return rank.astype(np.intp).repeat(blocks.shape[1]), blocks.reshape(-1).astype(np.intp)
    row, column = np.nonzero(blocks >= 0)
    return rank[row].astype(np.intp), blocks[row, column].astype(np.intp)


def distinct(numbers: NDArray[Any]) -> Index:
    """The different ones of whole numbers, ascending; of ranks or steps faster than np.unique."""
    if not numbers.size:
        return np.zeros(0, np.intp)
    low = int(numbers.min())
    return np.flatnonzero(np.bincount(numbers - low)) + low


def ragged(counts: NDArray[np.integer]) -> tuple[Index, Index]:
    """(which, place): 0 to counts[which] - 1 for each entry, one after the other."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def by_group(group: NDArray[np.integer], count: int) -> NDArray[np.int32]:
    """The entries of each group in turn: [count, widest], -1 beyond them; by columns in memory."""
    order, counts = np.argsort(group, kind="stable"), np.bincount(group, minlength=count)
    table = np.full((int(counts.max(initial=0)), count), -1, np.int32).T
    table[ragged(counts)] = order
    return table


def stacked(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns [n], or tables [n, w] of any widths filled with -1, one below the other."""
    if len(tables) == 1:
        return tables[0]
    if tables[0].ndim == 2:
        width = max(table.shape[1] for table in tables)
        tables = [widened(table, width) for table in tables]
    return np.concatenate(tables)


def widened(table: NDArray[Any], width: int) -> NDArray[Any]:
    """A table [n, w] with columns of -1 up to a width."""
    behind = np.full((len(table), width - table.shape[1]), -1, table.dtype)
    return np.hstack([table, behind]) if behind.shape[1] else table


def again(keys: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Returns which keys occurred before: bool [n]."""
    repeated = np.ones(len(keys), np.bool_)
    repeated[np.unique(keys, return_index=True)[1]] = False
    return repeated


def twice(keys: NDArray[np.intp]) -> bool:
    """True if a key occurs more than once; fast where keys are a few ascending stretches."""
    ordered = np.sort(keys, kind="stable")
    return bool((ordered[1:] == ordered[:-1]).any())
