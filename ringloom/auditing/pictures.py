"""Matrices of multiplicities as images: what was wanted, what was computed, and the difference.

Each row has a strip in the colour of its rank before it. Colours are those of the report, which
colour-blind eyes tell apart; every colour stands in the legend with its words.
"""

import base64
from io import BytesIO
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL.Image import Image

from ringloom.report.pictures.palette import rank_colours

Cells = NDArray[np.generic]
Cell = tuple[int, int]  # row and column
Ints = NDArray[np.int64]
NONE, ONCE, MORE = "#eef1f4", "#0072B2", "#E69F00"
LOST, EXTRA = "#CC79A7", "#D55E00"
SHADES = 16  # between two colours of a ramp
FAINTEST = 4  # of these shades: a few pairs of a pooled cell that differ show too
RANKS, FREE = 64, 255  # entries of the palette: the first rank's colour, and the gap's
STRIP = 40  # columns of a matrix for one of the strip
SEEN = 128  # cells across that a picture shows in any size: a wrong pair is at least one of them
LEGEND = (
    (ONCE, "attended once"),
    (MORE, "attended more often"),
    (NONE, "not attended"),
    (LOST, "missing"),
    (EXTRA, "too much"),
)


def counts(matrix: Cells, owners: Ints | None = None) -> Image:
    """Draws multiplicities, and the strip of ranks before them."""
    shades = np.rint(np.clip(matrix.astype(np.float32), 0, 2) * SHADES)
    return _drawn(shades, (NONE, ONCE, MORE), owners)


def difference(computed: Cells, wanted: Cells, owners: Ints | None = None) -> Image:
    """Draws where more, and where less was attended than wanted.

    Of a large matrix, cells that differ are drawn larger than they are, so that one of them shows.
    """
    apart = computed.astype(np.float32) - wanted.astype(np.float32)
    less, more = (_grown(_shades_apart(x)) for x in (-apart, apart))
    shades = np.where(more >= less, SHADES + more, SHADES - less)
    return _drawn(shades, (LOST, NONE, EXTRA), owners)


def address(image: Image) -> str:
    """Returns an image as the address of its data."""
    file = BytesIO()
    image.save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def owners_of(queries: int, shards: Any) -> Ints | None:
    """Returns the rank of each row of a picture; of pooled rows, that of their first query."""
    if not shards:
        return None
    owner = np.zeros(sum(int((shard >= 0).sum()) for shard in shards), np.int64)
    for rank, shard in enumerate(shards):
        owner[shard[shard >= 0]] = rank
    return owner[np.arange(queries) * len(owner) // queries]


def place_of(cell: Cell, shape: tuple[int, ...], strip: bool) -> tuple[float, float]:
    """Returns where the middle of a cell is in its picture: percent from the left, and the top."""
    before = sum(_strip(shape[1])) if strip else 0
    left = (before + cell[1] + 0.5) / (before + shape[1])
    return round(100 * left, 2), round(100 * (cell[0] + 0.5) / shape[0], 2)


def _shades_apart(apart: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns the shades of differences that are above zero; zero of others."""
    shades = np.rint(np.clip(apart, 0, 1) * SHADES)
    return np.where(apart > 0, np.maximum(shades, FAINTEST), 0).astype(np.uint8)


def _grown(shades: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Gives each cell the darkest shade of the block of cells around it."""
    for axis, size in enumerate(shades.shape):
        block = -(-size // SEEN)
        most = np.maximum.reduceat(shades, np.arange(0, size, block), axis)
        shades = np.repeat(most, block, axis).take(np.arange(size), axis)
    return shades


def _strip(columns: int) -> tuple[int, int]:
    """Returns the columns of the strip of ranks, and of the gap behind it."""
    wide = max(1, columns // STRIP)
    return wide, max(1, wide // 2)


def _drawn(shades: Cells, ramp: tuple[str, ...], owners: Ints | None) -> Image:
    """Draws shades on a ramp of colours, and the strip, in a palette: a byte per cell."""
    cells, palette = shades.astype(np.uint8), np.full((256, 3), 255.0)
    at = np.linspace(0, len(ramp) - 1, (len(ramp) - 1) * SHADES + 1)
    colours = np.array([_rgb(colour) for colour in ramp])
    for channel in range(3):
        palette[: len(at), channel] = np.interp(at, range(len(ramp)), colours[:, channel])
    if owners is not None:
        ranks = min(int(owners.max()) + 1, FREE - RANKS)
        palette[RANKS : RANKS + ranks] = [_rgb(colour) for colour in rank_colours(ranks)]
        wide, free = _strip(cells.shape[1])
        strip = RANKS + np.repeat(owners[:, None] % ranks, wide, axis=1).astype(np.uint8)
        gap = np.full((len(cells), free), FREE, np.uint8)
        cells = np.concatenate([strip, gap, cells], axis=1)
    image = PIL.Image.fromarray(cells)
    image.putpalette(np.rint(palette).astype(np.uint8).tobytes())
    return image


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
