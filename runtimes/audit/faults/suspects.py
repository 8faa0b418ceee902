"""Lists masks that are often computed by mistake, each with the kind of the mistake.

Suspects exist for masks that consist of documents with a band in each (causal, windows, packed
sequences).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ringloom.planner.errors import PlanError
from ringloom.planner.masks.mask import Packed
from ringloom.planner.masks.regions import FAR
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Ints


@dataclass(frozen=True, eq=False)
class Band:
    """A mask as documents with a band in each, for some queries and keys.

    `i`, `j`: aligned positions of queries and keys; `documents`: the document of each of them;
    `ahead`: the offset subtracted from j - i, by query. All int64.
    """

    i: Ints
    j: Ints
    documents: tuple[Ints, Ints]
    ahead: Ints
    left: int
    right: int

    def pairs(self) -> Array:
        """Returns the pairs: bool [queries, keys]."""
        apart = self.j[None] - self.i[:, None] - self.ahead[:, None]
        near = (-self.left <= apart) & (apart <= self.right)
        return near & self.same_document()

    def same_document(self) -> Array:
        """Returns the pairs of one document: bool [queries, keys]."""
        return np.asarray(self.documents[0][:, None] == self.documents[1][None])

    @property
    def divided(self) -> bool:
        """True for more than one document."""
        return bool(np.ptp(self.documents[1]) > 0)


def band(work: Workload, queries: Ints, keys: Ints) -> Band | None:
    """Returns the mask on these positions as a band, or None if it is not one."""
    try:
        packed = work.mask.packed()
    except PlanError:
        return None
    i = queries + work.offset
    if packed.sides is None:
        none = np.zeros_like(i), np.zeros_like(keys)
        return Band(i, keys, none, np.zeros_like(i), packed.left, packed.right)
    starts, ends = packed.sides[0], packed.sides[1]
    documents = tuple(
        np.searchsorted(bounds, at, "right") - 1
        for bounds, at in zip(packed.sides, (i, keys), strict=True)
    )
    own = documents[0].clip(0, len(starts) - 2)
    ahead = (ends - starts)[own + 1] if packed.from_ends else np.zeros_like(i)
    return Band(i, keys, (documents[0], documents[1]), ahead, packed.left, packed.right)


def suspects(work: Workload, queries: Ints, keys: Ints) -> Iterator[tuple[str, Array]]:
    """Yields (kind, pairs) of masks that are often computed instead of the wanted one."""
    right = band(work, queries, keys)
    if right is None:
        return
    sliding = right.left < FAR
    for one in (1, -1):
        if right.right < FAR:
            yield "off by one", replace(right, right=right.right + one).pairs()
        if sliding:
            yield "off by one", replace(right, left=right.left + one).pairs()
    if sliding and right.right == 0:
        yield "window ignored", replace(right, left=FAR).pairs()
        yield "window one-sided", replace(right, right=FAR).pairs()
        yield "window one-sided", replace(right, right=right.left).pairs()
    elif sliding:
        for width in (FAR, 0):
            yield "window one-sided", replace(right, left=width).pairs()
            yield "window one-sided", replace(right, right=width).pairs()
        yield "window ignored", replace(right, left=FAR, right=0).pairs()
    if sliding or right.right < FAR:
        kind = "window ignored" if sliding else "mask ignored"
        yield kind, replace(right, left=FAR, right=FAR).pairs()
    yield from other_ends(work, right)
    if right.divided:
        alone = replace(right, documents=(right.i * 0, right.j * 0), ahead=right.ahead * 0)
        yield "document leak", alone.pairs()
        if sliding:
            yield "document leak", replace(alone, left=FAR).pairs()
        yield "mask ignored", replace(alone, left=FAR, right=FAR).pairs()


def other_ends(work: Workload, right: Band) -> Iterator[tuple[str, Array]]:
    """Yields the mask aligned at the first query and key instead of the last, or vice versa."""
    packed: Packed = work.mask.packed()
    if right.left == right.right == FAR:
        return
    if packed.sides is None:
        other = right.ahead - work.offset
    else:
        q, k = packed.sides
        own = right.documents[0].clip(0, len(q) - 2)
        begin, end = (k[:-1] - q[:-1])[own], (k[1:] - q[1:])[own]
        other = begin if packed.from_ends else end
        other = np.where(end == begin, right.ahead, other)
    if not np.array_equal(other, right.ahead):
        yield "other alignment", replace(right, ahead=other).pairs()
