"""Tables as numpy arrays: blocks, steps, and tiles cut by a mask; `by_tables` also uses them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

nowhere = 2**30  # an index that stands for no slot, token or tile


class Side(NamedTuple):
    """The blocks of queries, or of keys; -1 is padding."""

    at: np.ndarray  # positions [blocks, tokens]
    tokens: np.ndarray  # indices of these tokens in their owner's shard [blocks, tokens]
    heads: np.ndarray  # first head and number of heads of each block [blocks, 2]
    owned: np.ndarray  # the blocks that each rank owns [ranks, most]


def side_of(blocks: Any, shards: Sequence[np.ndarray], heads: int) -> Side:
    """Return the Side of blocks [owner, [first row, end], [first head, end] unless all heads]."""
    valid = [np.flatnonzero(shard >= 0) for shard in shards]
    tokens = [valid[owner][slice(*rows)] for owner, rows, *_ in blocks]
    at = [shards[owner][x] for (owner, *_), x in zip(blocks, tokens, strict=True)]
    ends = [[*part, [0, heads]][0] for _, _, *part in blocks]
    owned = [[n for n, (x, *_) in enumerate(blocks) if x == rank] for rank in range(len(shards))]
    return Side(
        in_rows(at), in_rows(tokens), np.array([[a, b - a] for a, b in ends]), in_rows(owned)
    )


class Steps(NamedTuple):
    """The steps of a pass: slots per tensor, sections of steps with the same hops, and tables."""

    slots: dict[str, int]
    sections: list[Any]
    moves: np.ndarray  # slots to send, then slots to fill, of each hop [steps, ranks, slots]
    tiles: np.ndarray  # tiles that a rank attends [steps, ranks, most, numbers]


def steps_of(table: dict[str, Any]) -> Steps:
    """Return the steps of a pass from its table."""
    width = 2 + len(table["SLOTS"])  # numbers of a tile
    shape = len(table["MOVES"]), len(table["MOVES"][0])
    rows = ([np.ravel(row) for step in table[name] for row in step] for name in ("MOVES", "TILES"))
    moves, tiles = (in_rows(x, least) for x, least in zip(rows, (1, width), strict=True))
    moves, tiles = (np.where(x < 0, nowhere, x) for x in (moves, tiles))
    moves, tiles = moves.reshape(*shape, -1), tiles.reshape(*shape, -1, width)
    return Steps(table["SLOTS"], table["SECTIONS"], moves, tiles)


def in_rows(rows: Sequence[Any], least: int = 1) -> np.ndarray:
    """Return rows of different lengths as one array [rows, width], padded with -1."""
    width = max([least, *map(len, rows)])
    return np.array([np.pad(x, (0, width - len(x)), constant_values=-1) for x in rows], np.int32)


def calls_of(
    tiles: np.ndarray, queries: Side, keys: Side, offset: int, boxes: Any, most: int
) -> np.ndarray:
    """Cut tiles [steps, ranks, n, numbers] by boxes into calls [steps, ranks, most, numbers + 6].

    Query i is at the aligned position i + offset. Raises ValueError if a rank has more than `most`
    calls in a step.
    """
    spans, kv_spans = spans_of(queries.at) + offset, spans_of(keys.at)
    calls = np.full((*tiles.shape[:2], most, tiles.shape[3] + 6), nowhere, np.int32)
    bounds = np.array(boxes, np.int64).reshape(-1, 6)
    i0, i1, j0, j1, low, high = bounds.T
    for step, rank in np.ndindex(*tiles.shape[:2]):
        rows = []
        for tile in tiles[step, rank]:
            if tile[0] < nowhere:
                (a, b), (c, d) = spans[tile[0]], kv_spans[tile[1]]
                near = (i0 <= b) & (a < i1) & (j0 <= d) & (c < j1)
                near &= (low <= d - a) & (c - b <= high)
                rows += [np.append(tile, box) for box in bounds[near]]
        if len(rows) > most:
            raise ValueError(f"step {step} needs {len(rows)} calls, but max_calls is {most}")
        calls[step, rank, : len(rows)] = np.array(rows, np.int64).reshape(-1, calls.shape[3])
    return calls


def spans_of(at: np.ndarray) -> np.ndarray:
    """Return first and last position of each block [blocks, 2]; (2**29, -1) for empty blocks."""
    first = np.where(at < 0, 2**29, at).min(1)
    return np.stack([first, at.max(1)], 1)
