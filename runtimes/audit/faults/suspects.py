"""Lists masks that are often computed by mistake, each with the kind of its fault.

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

    `i`, `j`: aligned positions of queries and keys. `documents`: the documents of queries and of
    keys. `ahead`: the offset subtracted from j - i, by query. All int64.
    """

    i: Ints
    j: Ints
    documents: tuple[Ints, Ints]
    ahead: Ints
    left: int
    right: int

    def pairs(self) -> Array:
        """Returns the allowed pairs: bool [queries, keys]."""
        distance = self.distances()
        return (-self.left <= distance) & (distance <= self.right) & self.same_document()

    def distances(self) -> Array:
        """Returns the distance of each key from the diagonal: int64 [queries, keys]."""
        return np.asarray(self.j[None] - self.i[:, None] - self.ahead[:, None])

    def same_document(self) -> Array:
        """Returns the pairs within a document: bool [queries, keys]."""
        return np.asarray(self.documents[0][:, None] == self.documents[1][None])

    @property
    def has_documents(self) -> bool:
        """True for more than one document."""
        return bool(np.ptp(self.documents[1]) > 0)


def band(work: Workload, queries: Ints, keys: Ints) -> Band | None:
    """Returns the mask on these positions as a band, or None if it is not a band."""
    try:
        packed = work.mask.packed()
    except PlanError:
        return None
    i = queries + work.offset
    if packed.sides is None:
        single = np.zeros_like(i), np.zeros_like(keys)
        return Band(i, keys, single, np.zeros_like(i), packed.left, packed.right)
    q_bounds, k_bounds = packed.sides
    q_documents = np.searchsorted(q_bounds, i, "right") - 1
    k_documents = np.searchsorted(k_bounds, keys, "right") - 1
    document = q_documents.clip(0, len(q_bounds) - 2)
    ahead = (k_bounds - q_bounds)[document + 1] if packed.from_ends else np.zeros_like(i)
    return Band(i, keys, (q_documents, k_documents), ahead, packed.left, packed.right)


def suspects(work: Workload, queries: Ints, keys: Ints) -> Iterator[tuple[str, Array]]:
    """Yields (kind, pairs) of masks that are often computed instead of the wanted mask."""
    mask = band(work, queries, keys)
    if mask is None:
        return
    is_window = mask.left < FAR
    for step in (1, -1):
        if mask.right < FAR:
            yield "off by one", replace(mask, right=mask.right + step).pairs()
        if is_window:
            yield "off by one", replace(mask, left=mask.left + step).pairs()
    if is_window and mask.right == 0:
        yield "window ignored", replace(mask, left=FAR).pairs()
        yield "window one-sided", replace(mask, right=FAR).pairs()
        yield "window one-sided", replace(mask, right=mask.left).pairs()
    elif is_window:
        for width in (FAR, 0):
            yield "window one-sided", replace(mask, left=width).pairs()
            yield "window one-sided", replace(mask, right=width).pairs()
        yield "window ignored", replace(mask, left=FAR, right=0).pairs()
    if is_window or mask.right < FAR:
        kind = "window ignored" if is_window else "mask ignored"
        yield kind, replace(mask, left=FAR, right=FAR).pairs()
    yield from other_alignments(work, mask)
    if mask.has_documents:
        merged = replace(mask, documents=(mask.i * 0, mask.j * 0), ahead=mask.ahead * 0)
        yield "document leak", merged.pairs()
        if is_window:
            yield "document leak", replace(merged, left=FAR).pairs()
        yield "mask ignored", replace(merged, left=FAR, right=FAR).pairs()


def other_alignments(work: Workload, mask: Band) -> Iterator[tuple[str, Array]]:
    """Yields the mask aligned at the first query and key instead of the last, or vice versa."""
    packed: Packed = work.mask.packed()
    if mask.left == mask.right == FAR:
        return
    if packed.sides is None:
        ahead = mask.ahead - work.offset
    else:
        q_bounds, k_bounds = packed.sides
        document = mask.documents[0].clip(0, len(q_bounds) - 2)
        offsets = k_bounds - q_bounds
        at_start, at_end = offsets[document], offsets[document + 1]
        ahead = at_start if packed.from_ends else at_end
        ahead = np.where(at_end == at_start, mask.ahead, ahead)
    if not np.array_equal(ahead, mask.ahead):
        yield "other alignment", replace(mask, ahead=ahead).pairs()
