"""Classifies a fault of a matrix of multiplicities by the shape of its wrong pairs."""

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.faults.suspects import band, suspects
from ringloom.runtimes.audit.grid import Grid

MIN_BLOCK = 4  # minimum number of pairs of a block
MAX_DIFFERENT = 0.05  # share of the wrong pairs on which a matching suspect may differ


def kind_of(case: Case, grid: Grid, times: Array, uneven: Array, normalized: Array) -> str:
    """Returns the kind of fault of wrong multiplicities [rows, columns].

    `uneven`: rows whose weights are not multiples of one another. `normalized`: rows whose weights
    sum to 1 or are all 0.
    """
    attended = times > 0
    wrong = times != grid.wanted
    extra, lost = attended & ~grid.wanted, grid.wanted & ~attended
    repeated = grid.wanted & (times > 1)
    rows = wrong.any(axis=1)
    unmerged = "unmerged partials" if case.ranks > 1 else "wrong weights"
    if uneven.any() and uneven[rows].mean() >= 0.5:
        return unmerged
    if extra.any() and not extra[:, ~grid.padding].any():
        return "padding attended"
    if not extra.any() and not normalized[rows].any():  # weights that sum to 1 are averages
        return unmerged
    if kind := matching_suspect(case, grid, attended, wrong):
        return kind
    if extra.any():
        return _kind_of_extra(case, grid, extra, lost)
    if lost.sum() >= repeated.sum():
        return _kind_of_lost(grid, attended, lost)
    return "attended twice"


def matching_suspect(case: Case, grid: Grid, attended: Array, wrong: Array) -> str:
    """Returns the kind of the suspect that best matches the attended pairs, or "" without one."""
    is_token = ~grid.padding
    limit, best = MAX_DIFFERENT * wrong.sum(), ""
    for kind, pairs in suspects(case.work, grid.queries, grid.keys[is_token]):
        different = int((pairs != attended[:, is_token]).sum())
        if different < limit or (different == 0 and not best):
            limit, best = different, kind
    return best


def _kind_of_extra(case: Case, grid: Grid, extra: Array, lost: Array) -> str:
    """Returns the kind of fault for masked pairs that have weight."""
    if not grid.wanted[extra.any(axis=1)].any():
        return "empty rows"
    if lost.sum() > MAX_DIFFERENT * extra.sum():
        return "another mask"
    is_token = ~grid.padding
    mask = band(case.work, grid.queries, grid.keys[is_token])
    if mask is None:
        return "mask leak"
    extra = extra[:, is_token]
    if not (extra & mask.same_document()).any():
        return "document leak"
    distance = mask.distances()
    edges = (distance == mask.right + 1) | (distance == -mask.left - 1)
    if not (extra & ~edges).any():
        return "off by one"
    if not (extra & (distance <= mask.right)).any():
        return "future leak"
    return "mask leak" if (extra & (distance >= -mask.left)).any() else "window ignored"


def _kind_of_lost(grid: Grid, attended: Array, lost: Array) -> str:
    """Returns the kind of fault for allowed pairs that have no weight."""
    rows = np.flatnonzero(lost.any(axis=1))
    ranks = np.unique(grid.key_ranks)
    wanted_ranks, attended_ranks = (
        np.stack([x[:, grid.key_ranks == rank].any(axis=1) for rank in ranks], axis=1).sum(axis=1)
        for x in (grid.wanted, attended)
    )
    single = (attended_ranks[rows] == 1) & (wanted_ranks[rows] > 1)
    if single.all() and len(rows) == (wanted_ranks > 1).sum() and len(ranks) > 1:
        return "unmerged partials"
    is_block = True
    for query_rank in np.unique(grid.query_ranks[rows]):
        for rank in ranks:
            block = np.ix_(grid.query_ranks == query_rank, grid.key_ranks == rank)
            is_block &= is_rectangular(lost[block], grid.wanted[block])
    return "block lost" if is_block or is_rectangular(lost, grid.wanted) else "keys lost"


def is_rectangular(lost: Array, wanted: Array) -> bool:
    """Returns True if the lost pairs are all the wanted pairs of some rows and some columns.

    Fewer than `MIN_BLOCK` pairs do not count as rectangular, unless they are all the wanted pairs.
    """
    rows, columns = lost.any(axis=1), lost.any(axis=0)
    if not rows.any():
        return True
    if lost.sum() < min(MIN_BLOCK, wanted.sum()):
        return False
    return bool((lost == wanted)[np.ix_(rows, columns)].all())
