"""Draws how often each pair is wanted and computed, and the difference, as images.

A strip to the left of each row has the colour of its rank. Colours are those of the report, which
colour-blind readers can tell apart; the legend names each of them.
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
SHADES = 16  # shades between two colours of a ramp
FAINTEST = 4  # lightest shade of a difference, so that a few wrong pairs in a cell show
RANKS, FREE = 64, 255  # palette entries of the first rank and of the gap
STRIP = 40  # columns of a matrix per column of the strip
SEEN = 128  # differences are drawn at least as large as 1 / SEEN of the picture
LEGEND = (
    (ONCE, "attended once"),
    (MORE, "attended more often"),
    (NONE, "not attended"),
    (LOST, "missing"),
    (EXTRA, "too much"),
)


def counts(matrix: Cells, owners: Ints | None = None) -> Image:
    """Draws how often pairs are attended, with the strip of ranks."""
    shades = np.rint(np.clip(matrix.astype(np.float32), 0, 2) * SHADES)
    return _drawn(shades, (NONE, ONCE, MORE), owners)


def difference(computed: Cells, wanted: Cells, owners: Ints | None = None) -> Image:
    """Draws which pairs are attended more often and less often than wanted.

    In a large matrix, cells that differ are enlarged so that a single one is visible.
    """
    apart = computed.astype(np.float32) - wanted.astype(np.float32)
    less, more = (_grown(_shades_apart(x)) for x in (-apart, apart))
    shades = np.where(more >= less, SHADES + more, SHADES - less)
    return _drawn(shades, (LOST, NONE, EXTRA), owners)


def address(image: Image) -> str:
    """Returns an image as a data URL."""
    file = BytesIO()
    image.save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def owners_of(queries: int, shards: Any) -> Ints | None:
    """Returns the rank of each row of a picture; for pooled rows, the rank of the first query."""
    if not shards:
        return None
    owner = np.zeros(sum(int((shard >= 0).sum()) for shard in shards), np.int64)
    for rank, shard in enumerate(shards):
        owner[shard[shard >= 0]] = rank
    return owner[np.arange(queries) * len(owner) // queries]


def place_of(cell: Cell, shape: tuple[int, ...], strip: bool) -> tuple[float, float]:
    """Returns the centre of a cell in percent from the left and top of its picture."""
    before = sum(_strip(shape[1])) if strip else 0
    left = (before + cell[1] + 0.5) / (before + shape[1])
    return round(100 * left, 2), round(100 * (cell[0] + 0.5) / shape[0], 2)


def _shades_apart(apart: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns the shades of positive differences; zero elsewhere."""
    shades = np.rint(np.clip(apart, 0, 1) * SHADES)
    return np.where(apart > 0, np.maximum(shades, FAINTEST), 0).astype(np.uint8)


def _grown(shades: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Gives each cell the darkest shade of its block of cells."""
    for axis, size in enumerate(shades.shape):
        block = -(-size // SEEN)
        most = np.maximum.reduceat(shades, np.arange(0, size, block), axis)
        shades = np.repeat(most, block, axis).take(np.arange(size), axis)
    return shades


def _strip(columns: int) -> tuple[int, int]:
    """Returns the widths of the strip of ranks and of the gap next to it, in columns."""
    wide = max(1, columns // STRIP)
    return wide, max(1, wide // 2)


def _drawn(shades: Cells, ramp: tuple[str, ...], owners: Ints | None) -> Image:
    """Draws shades of a colour ramp and the strip as a palette image, one byte per cell."""
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
