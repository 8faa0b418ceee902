"""Matrices of multiplicities as images: what was wanted, what was computed, and the difference.

Each row has a strip in the colour of its rank before it. Colours are those of the report, which
colour-blind eyes tell apart; every colour stands in the legend with its words.
"""

import base64
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ringloom.report.pictures.palette import rank_colours

Cells = NDArray[np.generic]
Colour = tuple[int, int, int]
NONE, ONCE, MORE = "#eef1f4", "#0072B2", "#E69F00"
LOST, EXTRA = "#CC79A7", "#D55E00"
STRIP = 40  # columns of a matrix for one of the strip
LEGEND = (
    (ONCE, "attended once"),
    (MORE, "attended more often"),
    (NONE, "not attended"),
    (LOST, "missing"),
    (EXTRA, "too much"),
)


def counts(matrix: Cells, owners: NDArray[np.int64] | None = None) -> str:
    """Draws multiplicities: an image as the address of its data."""
    once = np.clip(matrix, 0, 1).astype(np.float32)
    more = np.clip(matrix.astype(np.float32) - 1, 0, 1)
    return _address(_blend(once - more, ONCE, more, MORE), owners)


def difference(computed: Cells, wanted: Cells, owners: NDArray[np.int64] | None = None) -> str:
    """Draws where more, and where less was attended than wanted."""
    apart = computed.astype(np.float32) - wanted.astype(np.float32)
    seen = np.ceil(np.clip(np.abs(apart), 0, 1) * 4) / 4  # a few pairs of a pooled cell show too
    return _address(_blend(seen * (apart < 0), LOST, seen * (apart > 0), EXTRA), owners)


def owners_of(queries: int, shards: Any) -> NDArray[np.int64] | None:
    """Returns the rank of each row of a picture; of pooled rows, that of their first query."""
    if not shards:
        return None
    owner = np.zeros(sum(int((shard >= 0).sum()) for shard in shards), np.int64)
    for rank, shard in enumerate(shards):
        owner[shard[shard >= 0]] = rank
    return owner[np.arange(queries) * len(owner) // queries]


def _blend(
    first: NDArray[np.float32], one: str, second: NDArray[np.float32], other: str
) -> NDArray[np.uint8]:
    """Mixes two colours into the ground by their shares, 0 to 1."""
    ground, a, b = (np.array(_rgb(colour), np.float32) for colour in (NONE, one, other))
    mixed = ground + first[..., None] * (a - ground) + second[..., None] * (b - ground)
    return np.clip(np.rint(mixed), 0, 255).astype(np.uint8)


def _address(cells: NDArray[np.uint8], owners: NDArray[np.int64] | None) -> str:
    if owners is not None:
        colours = np.array([_rgb(c) for c in rank_colours(int(owners.max()) + 1)], np.uint8)
        wide = max(1, cells.shape[1] // STRIP)
        strip = np.repeat(colours[owners][:, None], wide, axis=1)
        gap = np.full((len(cells), max(1, wide // 2), 3), 255, np.uint8)
        cells = np.concatenate([strip, gap, cells], axis=1)
    file = BytesIO()
    Image.fromarray(cells).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _rgb(colour: str) -> Colour:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue
