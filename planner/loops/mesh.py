"""The mesh in which a plan's messages are the fewest shifts, along single axes.

rank = mixed radix of its coordinates:   8 ranks = (8,) or (2, 4) or (4, 2) or (2, 2, 2)
"""

from collections.abc import Iterable, Iterator

import numpy as np

from planner.loops.form import Ints

AXES = 4  # at the most


def find_mesh(moves: Iterable[tuple[Ints, Ints]], ranks: int) -> tuple[int, ...]:
    """The factorisation of `ranks` with the fewest distinct shifts, from (src, dst) columns."""
    steps = dict[bytes, Ints]()
    for src, dst in moves:
        pairs = np.unique(src.astype(np.intp) * ranks + dst)
        steps[pairs.tobytes()] = pairs
    return min(factorisations(ranks, AXES), key=lambda mesh: (_price(mesh, steps), len(mesh)))


def factorisations(n: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ordered ways to write n as a product of at most `most` factors above 1; (n,) first."""
    yield (n,)
    for f in range(2, n):
        if n % f == 0 and most > 1:
            yield from ((f, *rest) for rest in factorisations(n // f, most - 1))


def _price(mesh: tuple[int, ...], steps: dict[bytes, Ints]) -> int:
    """Distinct shifts of all different steps; a shift along two axes counts twice."""
    ranks, total = int(np.prod(mesh)), 0
    where = np.stack(np.unravel_index(np.arange(ranks), mesh))
    for pairs in steps.values():
        shift = (where[:, pairs % ranks] - where[:, pairs // ranks]) % np.array(mesh)[:, None]
        distinct = np.flatnonzero(np.bincount(np.ravel_multi_index(tuple(shift), mesh)))
        axes = np.count_nonzero(np.unravel_index(distinct, mesh), axis=0)
        total += int((1 + (axes > 1)).sum())
    return total
