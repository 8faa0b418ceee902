"""Blocks: a block-sparse mask, given by a grid of cells."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ringloom.planner.errors import PlanError
from ringloom.planner.given import parse_tokens, require_integer
from ringloom.planner.masks.areas import LIMIT
from ringloom.planner.masks.mask import Allowed, Mask, Names
from ringloom.planner.masks.regions import Region, rectangles

MOST_CELLS = 2**24


@dataclass(frozen=True, repr=False)
class Blocks(Mask):
    """A query sees the keys of the true cells in its row of the grid; cells are size x size.

    `grid` is any two-dimensional sequence or array of booleans or 0/1. Queries outside the grid see
    nothing, and keys outside are not seen. Raises PlanError for anything else.
    """

    forms = ("blocks:SIZE:01/11", "blocks@FILE")
    from_zero = True
    definition = "GRID[i // {size}, j // {size}]"
    example = 'expected JSON {"size": N, "grid": [[0, 1, ...], ...]}'

    grid: tuple[tuple[bool, ...], ...]
    size: int

    def __post_init__(self) -> None:
        size = min(require_integer("Blocks size", self.size, least=1), LIMIT - 1)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "grid", tuple(map(tuple, _cells(self.grid).tolist())))

    @property
    def names(self) -> Names:
        return {"GRID": np.array(self.grid)}

    def region(self) -> Region:
        top, bottom, left, right = rectangles(np.array(self.grid)) * self.size
        return Region.boxes(top, bottom, left, right)

    def check(self, seq: int, kv_seq: int) -> None:
        shape = len(self.grid), len(self.grid[0])
        if min(shape) * self.size < kv_seq:
            raise PlanError(
                f"a grid of {shape[0]} x {shape[1]} blocks of {self.size} covers "
                f"{shape[0] * self.size} x {shape[1] * self.size} positions, not {kv_seq}"
            )

    @classmethod
    def parse(cls, text: str) -> Mask:
        size, _, rows = text.partition(":")
        if not re.fullmatch(r"[01]+(/[01]+)*", rows):
            raise PlanError("inline blocks must be SIZE:ROWS with rows of 0 and 1, as in 64:10/11")
        grid = tuple(tuple(cell == "1" for cell in row) for row in rows.split("/"))
        return cls(grid, parse_tokens(size))

    def __str__(self) -> str:
        rows = "/".join("".join("01"[cell] for cell in row) for row in self.grid)
        return f"blocks:{self.size}:{rows}"


def _cells(grid: ArrayLike) -> Allowed:
    """Returns the grid as a boolean array [rows, columns]."""
    try:
        cells = np.asarray(grid)
        is_grid = cells.ndim == 2 and cells.size > 0 and bool(np.isin(cells, (0, 1)).all())
    except (TypeError, ValueError):
        is_grid = False
    if not is_grid:
        raise PlanError("a Blocks grid must have rows of equal length that consist of 0s and 1s")
    if cells.size > MOST_CELLS:
        raise PlanError(f"a Blocks grid has at most {MOST_CELLS} cells, not {cells.size}")
    return cells.astype(np.bool_)
