"""Draws how often each pair is wanted and computed, and the difference, as images.

A strip on the left of each row has the colour of its rank. The colours are those of the report,
which colour-blind readers can distinguish; the legend names each colour.
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
MISSING, EXTRA = "#CC79A7", "#D55E00"
SHADES = 16  # shades between two colours of a ramp
MIN_SHADE = 4  # lightest shade of a difference, so that a few wrong pairs in a cell are visible
FIRST_RANK, GAP = 64, 255  # palette entries
STRIP_RATIO = 40  # columns of a matrix per column of the strip
MIN_MARK = 128  # a difference is drawn at least 1 / MIN_MARK of the picture wide and high
LEGEND = (
    (ONCE, "attended once"),
    (MORE, "attended more often"),
    (NONE, "not attended"),
    (MISSING, "missing"),
    (EXTRA, "too much"),
)


def draw_counts(matrix: Cells, owners: Ints | None = None) -> Image:
    """Draws how often pairs are attended, with the strip of ranks."""
    shades = np.rint(np.clip(matrix.astype(np.float32), 0, 2) * SHADES)
    return _draw(shades, (NONE, ONCE, MORE), owners)


def draw_difference(computed: Cells, wanted: Cells, owners: Ints | None = None) -> Image:
    """Draws which pairs are attended more often and less often than wanted.

    In a large matrix, cells that differ are enlarged so that a single cell is visible.
    """
    excess = computed.astype(np.float32) - wanted.astype(np.float32)
    missing, extra = (_enlarge(_difference_shades(x)) for x in (-excess, excess))
    shades = np.where(extra >= missing, SHADES + extra, SHADES - missing)
    return _draw(shades, (MISSING, NONE, EXTRA), owners)


def data_url(image: Image) -> str:
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


def centre_of(cell: Cell, shape: tuple[int, ...], has_strip: bool) -> tuple[float, float]:
    """Returns the centre of a cell in percent from the left and top of its picture."""
    offset = sum(_strip_widths(shape[1])) if has_strip else 0
    left = (offset + cell[1] + 0.5) / (offset + shape[1])
    return round(100 * left, 2), round(100 * (cell[0] + 0.5) / shape[0], 2)


def _difference_shades(excess: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns the shades of positive differences; zero elsewhere."""
    shades = np.rint(np.clip(excess, 0, 1) * SHADES)
    return np.where(excess > 0, np.maximum(shades, MIN_SHADE), 0).astype(np.uint8)


def _enlarge(shades: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Gives each cell the darkest shade of its block of cells."""
    for axis, size in enumerate(shades.shape):
        block = -(-size // MIN_MARK)
        darkest = np.maximum.reduceat(shades, np.arange(0, size, block), axis)
        shades = np.repeat(darkest, block, axis).take(np.arange(size), axis)
    return shades


def _strip_widths(columns: int) -> tuple[int, int]:
    """Returns the widths of the strip of ranks and of the gap next to it, in columns."""
    strip = max(1, columns // STRIP_RATIO)
    return strip, max(1, strip // 2)


def _draw(shades: Cells, ramp: tuple[str, ...], owners: Ints | None) -> Image:
    """Draws shades of a colour ramp, and the strip, as a palette image with one byte per cell."""
    cells, palette = shades.astype(np.uint8), np.full((256, 3), 255.0)
    steps = np.linspace(0, len(ramp) - 1, (len(ramp) - 1) * SHADES + 1)
    colours = np.array([_rgb(colour) for colour in ramp])
    for channel in range(3):
        palette[: len(steps), channel] = np.interp(steps, range(len(ramp)), colours[:, channel])
    if owners is not None:
        ranks = min(int(owners.max()) + 1, GAP - FIRST_RANK)
        palette[FIRST_RANK : FIRST_RANK + ranks] = [_rgb(colour) for colour in rank_colours(ranks)]
        width, gap_width = _strip_widths(cells.shape[1])
        strip = FIRST_RANK + np.repeat(owners[:, None] % ranks, width, axis=1).astype(np.uint8)
        gap = np.full((len(cells), gap_width), GAP, np.uint8)
        cells = np.concatenate([strip, gap, cells], axis=1)
    image = PIL.Image.fromarray(cells)
    image.putpalette(np.rint(palette).astype(np.uint8).tobytes())
    return image


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
