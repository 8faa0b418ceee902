"""Classifies a fault of a matrix of multiplicities by the shape of its wrong pairs."""

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.faults.suspects import band, suspects
from ringloom.runtimes.audit.place import Place

BLOCK = 4  # minimum number of pairs of a block
MISSED = 0.05  # share of the wrong pairs on which a matching suspect may differ


def kind_of(case: Case, at: Place, times: Array, uneven: Array, whole: Array) -> str:
    """Returns the kind of fault of wrong multiplicities [rows, columns].

    `uneven`: rows whose weights are no multiples of one another; `whole`: rows whose weights sum to
    1 or are all 0.
    """
    seen = times > 0
    wrong = times != at.wanted
    extra, lost, twice = seen & ~at.wanted, at.wanted & ~seen, at.wanted & (times > 1)
    rows = wrong.any(axis=1)
    unmerged = "unmerged partials" if case.ranks > 1 else "wrong weights"
    if uneven.any() and uneven[rows].mean() >= 0.5:
        return unmerged
    if extra.any() and not extra[:, ~at.padding].any():
        return "padding attended"
    if not extra.any() and not whole[rows].any():  # weights that sum to 1 are averages
        return unmerged
    if kind := suspected(case, at, seen, wrong):
        return kind
    if extra.any():
        return _of_extra(case, at, extra, lost)
    if lost.sum() >= twice.sum():
        return _of_lost(at, seen, lost)
    return "attended twice"


def suspected(case: Case, at: Place, seen: Array, wrong: Array) -> str:
    """Returns the kind of the suspect that best matches the pairs seen, or "" if none does."""
    real = ~at.padding
    limit, best = MISSED * wrong.sum(), ""
    for kind, pairs in suspects(case.work, at.queries, at.keys[real]):
        missed = int((pairs != seen[:, real]).sum())
        if missed < limit or (missed == 0 and not best):
            limit, best = missed, kind
    return best


def _of_extra(case: Case, at: Place, extra: Array, lost: Array) -> str:
    """Returns the kind of fault for pairs that are masked but have weight."""
    if not at.wanted[extra.any(axis=1)].any():
        return "empty rows"
    if lost.sum() > MISSED * extra.sum():
        return "another mask"
    real = ~at.padding
    right = band(case.work, at.queries, at.keys[real])
    if right is None:
        return "mask leak"
    extra = extra[:, real]
    if not (extra & right.same_document()).any():
        return "document leak"
    apart = right.j[None] - right.i[:, None] - right.ahead[:, None]
    edges = (apart == right.right + 1) | (apart == -right.left - 1)
    if not (extra & ~edges).any():
        return "off by one"
    if not (extra & (apart <= right.right)).any():
        return "future leak"
    return "mask leak" if (extra & (apart >= -right.left)).any() else "window ignored"


def _of_lost(at: Place, seen: Array, lost: Array) -> str:
    """Returns the kind of fault for pairs that are allowed but have no weight."""
    rows = np.flatnonzero(lost.any(axis=1))
    ranks = np.unique(at.key_ranks)
    wanted, kept = (
        np.stack([x[rows][:, at.key_ranks == rank].any(axis=1) for rank in ranks], axis=1)
        for x in (at.wanted, seen)
    )
    several = np.flatnonzero(at.wanted.any(axis=1))
    spread = np.stack([at.wanted[:, at.key_ranks == r].any(axis=1) for r in ranks], axis=1).sum(1)
    alone = (kept.sum(axis=1) == 1) & (wanted.sum(axis=1) > 1)
    if alone.all() and len(rows) == (spread[several] > 1).sum() and len(ranks) > 1:
        return "unmerged partials"
    whole = True
    for query_rank in np.unique(at.query_ranks[rows]):
        for rank in ranks:
            block = np.ix_(at.query_ranks == query_rank, at.key_ranks == rank)
            whole &= rectangular(lost[block], at.wanted[block])
    return "block lost" if whole or rectangular(lost, at.wanted) else "keys lost"


def rectangular(lost: Array, wanted: Array) -> bool:
    """Returns True if the lost pairs are all the wanted pairs of some rows and some columns.

    Fewer than `BLOCK` pairs are no block, unless ranks hold no more.
    """
    rows, columns = lost.any(axis=1), lost.any(axis=0)
    if not rows.any():
        return True
    if lost.sum() < min(BLOCK, wanted.sum()):
        return False
    return bool((lost == wanted)[np.ix_(rows, columns)].all())
