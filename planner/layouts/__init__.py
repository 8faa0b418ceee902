"""Layouts: which positions each rank owns: by token order, by documents, or by work."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, unknown
from ringloom.planner.given import whole
from ringloom.planner.layouts.by_place import PIECES as PIECES
from ringloom.planner.layouts.by_place import contiguous, striped, zigzag
from ringloom.planner.layouts.by_work import balanced_layout as balanced_layout
from ringloom.planner.layouts.by_work import even_work, heap, snake
from ringloom.planner.layouts.documents import parts as parts
from ringloom.planner.layouts.documents import per_document, whole_document
from ringloom.planner.layouts.peers import PEER_NAMES as PEER_NAMES
from ringloom.planner.layouts.peers import own_name as own_name
from ringloom.planner.layouts.pieces import Chunks as Chunks
from ringloom.planner.layouts.pieces import by_heads as by_heads
from ringloom.planner.layouts.pieces import cut as cut
from ringloom.planner.layouts.pieces import split as split
from ringloom.planner.layouts.pieces import whole_heads as whole_heads
from ringloom.planner.partitions import Partition, Ranges
from ringloom.planner.workload import Workload, check_request

Layout = str | Partition  # a name, or a partition whose positions and owners to use

LAYOUTS: dict[str, Callable[[int, int, int], Chunks]] = {
    "contiguous": contiguous,
    "striped": striped,
    "zigzag": zigzag,
}
BY_MASK: dict[str, Callable[[Workload, int, int], tuple[Chunks, Chunks]]] = {
    "per-document": per_document,
    "whole-document": whole_document,
    "heap": heap,
    "snake": snake,
    "even-work": even_work,
}
# Largest number of ranks for which `names` tries layouts by the mask: for even-work on 1,024 ranks
# that would take longer than planning.
MOST = 256
IN_GRAINS = "striped", "heap", "snake", "even-work"


def chunks_of(layout: Layout, tokens: int, ranks: int, grain: int = 0) -> Chunks:
    """Cuts tokens into pieces with owners, by a layout that ignores the mask; grain: stripe size.

    Raises PlanError for any other layout, and for a grain that the layout does not use.
    """
    if not isinstance(layout, str) or layout in BY_MASK:
        kind = "by the mask" if isinstance(layout, str) else "that is a partition"
        raise PlanError(f"a layout {kind} cannot be used here: choose one of {', '.join(LAYOUTS)}")
    if layout not in LAYOUTS:
        raise PlanError(unknown("layout", layout, [*LAYOUTS, *BY_MASK]))
    _check_grain(layout, grain)
    return LAYOUTS[layout](tokens, ranks, grain or 1)


def sides(work: Workload, ranks: int, layout: Layout, grain: int = 0) -> tuple[Chunks, Chunks]:
    """Returns the pieces of queries and of keys with their owners, under any layout.

    grain: tokens of a stripe or of a dispatched piece; 0 lets the layout choose. Raises PlanError
    for an unknown layout, and for a partition that does not fit.
    """
    match layout:
        case Partition(q, kv):
            owners = max((b.home + 1 for b in q.blocks + kv.blocks), default=0)
            if owners > ranks:
                raise PlanError(
                    f"the layout has {owners} ranks, but tokens are divided among {ranks}"
                    " (ranks, or groups of ranks)"
                )
            layout.check(work, ranks)
            pieces = ({(b.positions, b.home): None for b in s.blocks} for s in (q, kv))
            return list(next(pieces)), list(next(pieces))
        case str() if layout in BY_MASK:
            _check_grain(layout, grain)
            return BY_MASK[layout](work, ranks, grain)
    q_pieces, same = chunks_of(layout, work.seq, ranks, grain), work.seq == work.kv_seq
    return q_pieces, q_pieces if same else chunks_of(layout, work.kv_seq, ranks, grain)


def _check_grain(layout: str, grain: int) -> None:
    if whole("grain", grain) > 1 and layout not in IN_GRAINS:
        raise PlanError(f"grain={grain} needs one of {', '.join(IN_GRAINS)}, not layout {layout}")


def by_tokens(work: Workload, ranks: int, layout: Layout, grain: int = 0) -> Partition:
    """Returns the partition of both sides by one layout, with all heads in each block."""
    check_request(work, ranks, "by_tokens(work, ranks, layout)")
    q_pieces, kv_pieces = sides(work, ranks, layout, grain)
    q = whole_heads(q_pieces, work.heads)
    if kv_pieces == q_pieces and work.heads == work.kv_heads:
        return Partition(q, q)  # one object, so cached properties are computed once
    return Partition(q, whole_heads(kv_pieces, work.kv_heads))


def names(work: Workload, ranks: int, partition: Partition) -> str:
    """Returns the names of a layout here and in other libraries, as "zigzag = ...", or "custom".

    Groups of ranks may share the shards of a layout: consecutive ranks, or ranks as far apart as
    there are groups. Layouts by the mask are computed for comparison on up to 256 ranks.
    """
    by_mask = tuple(BY_MASK) if ranks <= MOST else ()
    pieces = ((block.positions, block.home) for block in partition.q.blocks)
    owner = owners_of_tokens(pieces, work.seq)
    for members in (n for n in range(1, ranks + 1) if ranks % n == 0 and (n < ranks or n == 1)):
        groups = ranks // members
        places = owner // members, owner % groups
        for layout in (*LAYOUTS, *by_mask) if members == 1 else LAYOUTS:
            group = owners_of_tokens(sides(work, groups, layout)[0], work.seq)
            if any(np.array_equal(group, place) for place in places):
                shared = f" of groups of {members} ranks" if members > 1 else ""
                return f"{layout}{shared} = {PEER_NAMES[layout]}"
    return f"custom, {len(partition.q.chunks)} query and {len(partition.kv.chunks)} KV pieces"


def owners_of_tokens(pieces: Iterable[tuple[Ranges, int]], tokens: int) -> NDArray[np.int32]:
    """Returns the rank that owns each token: [tokens]; empty if tokens are split by heads."""
    owner, owned = np.zeros(tokens, np.int32), 0
    for positions, rank in dict.fromkeys(pieces):  # once for all heads
        for one in positions:
            owner[one.start : one.stop : one.step] = rank
            owned += len(one)
    return owner if owned == tokens else owner[:0]
