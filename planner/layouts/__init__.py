"""Layouts: the positions that each rank owns, by token order, by documents, or by work."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, unknown
from ringloom.planner.given import require_integer
from ringloom.planner.layouts.by_place import PIECES as PIECES
from ringloom.planner.layouts.by_place import contiguous, striped, zigzag
from ringloom.planner.layouts.by_work import balanced_layout as balanced_layout
from ringloom.planner.layouts.by_work import even_work, heap, snake
from ringloom.planner.layouts.documents import independent_parts as independent_parts
from ringloom.planner.layouts.documents import per_document, whole_document
from ringloom.planner.layouts.peers import PEER_NAMES as PEER_NAMES
from ringloom.planner.layouts.peers import canonical_layout as canonical_layout
from ringloom.planner.layouts.pieces import Chunks as Chunks
from ringloom.planner.layouts.pieces import by_heads as by_heads
from ringloom.planner.layouts.pieces import cut as cut
from ringloom.planner.layouts.pieces import split as split
from ringloom.planner.layouts.pieces import whole_heads as whole_heads
from ringloom.planner.partitions import Partition, Ranges
from ringloom.planner.workload import Workload, check_request

Layout = str | Partition  # a name, or a partition with the positions and owners

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
# Largest number of ranks for which `names` compares layouts by the mask: on 1,024 ranks, even-work
# would take longer than planning.
MOST_RANKS = 256
IN_GRAINS = "striped", "heap", "snake", "even-work"


def chunks_of(layout: Layout, tokens: int, ranks: int, grain: int = 0) -> Chunks:
    """Cuts tokens into pieces with owners, by a layout that ignores the mask.

    grain: tokens of a stripe. Raises PlanError for any other layout, and for a grain that the
    layout does not use.
    """
    if not isinstance(layout, str) or layout in BY_MASK:
        kind = "by the mask" if isinstance(layout, str) else "that is a partition"
        raise PlanError(f"a layout {kind} cannot be used here: choose one of {', '.join(LAYOUTS)}")
    if layout not in LAYOUTS:
        raise PlanError(unknown("layout", layout, [*LAYOUTS, *BY_MASK]))
    _check_grain(layout, grain)
    return LAYOUTS[layout](tokens, ranks, grain or 1)


def sides(work: Workload, ranks: int, layout: Layout, grain: int = 0) -> tuple[Chunks, Chunks]:
    """Returns the pieces of queries and the pieces of keys, with owners, for any layout.

    grain: tokens of a stripe or piece; 0 lets the layout choose. Raises PlanError for an unknown
    layout, and for a partition that does not fit.
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
    q_pieces, is_same = chunks_of(layout, work.seq, ranks, grain), work.seq == work.kv_seq
    return q_pieces, q_pieces if is_same else chunks_of(layout, work.kv_seq, ranks, grain)


def _check_grain(layout: str, grain: int) -> None:
    if require_integer("grain", grain) > 1 and layout not in IN_GRAINS:
        raise PlanError(f"grain={grain} needs one of {', '.join(IN_GRAINS)}, not layout {layout}")


def by_tokens(work: Workload, ranks: int, layout: Layout, grain: int = 0) -> Partition:
    """Returns the partition of the two sides by a layout, with all heads in each block."""
    check_request(work, ranks, "by_tokens(work, ranks, layout)")
    q_pieces, kv_pieces = sides(work, ranks, layout, grain)
    q = whole_heads(q_pieces, work.heads)
    if kv_pieces == q_pieces and work.heads == work.kv_heads:
        return Partition(q, q)  # a shared object, which computes cached properties once
    return Partition(q, whole_heads(kv_pieces, work.kv_heads))


def names(work: Workload, ranks: int, partition: Partition) -> str:
    """Returns the names of a layout here and in other libraries, as "zigzag = ...", or "custom".

    Also names layouts of groups of ranks, which consist of consecutive ranks, or of ranks at equal
    distances. Compares layouts by the mask on up to 256 ranks.
    """
    by_mask = tuple(BY_MASK) if ranks <= MOST_RANKS else ()
    pieces = ((block.positions, block.home) for block in partition.q.blocks)
    owner = owners_of_tokens(pieces, work.seq)
    for members in (n for n in range(1, ranks + 1) if ranks % n == 0 and (n < ranks or n == 1)):
        groups = ranks // members
        candidates = owner // members, owner % groups
        for layout in (*LAYOUTS, *by_mask) if members == 1 else LAYOUTS:
            group = owners_of_tokens(sides(work, groups, layout)[0], work.seq)
            if any(np.array_equal(group, candidate) for candidate in candidates):
                groups_text = f" of groups of {members} ranks" if members > 1 else ""
                return f"{layout}{groups_text} = {PEER_NAMES[layout]}"
    return f"custom, {len(partition.q.chunks)} query and {len(partition.kv.chunks)} KV pieces"


def owners_of_tokens(pieces: Iterable[tuple[Ranges, int]], tokens: int) -> NDArray[np.int32]:
    """Returns the owner of each token: [tokens]; empty if several ranks own heads of a token."""
    owner, count = np.zeros(tokens, np.int32), 0
    for positions, rank in dict.fromkeys(pieces):  # head slices share positions
        for part in positions:
            owner[part.start : part.stop : part.step] = rank
            count += len(part)
    return owner if count == tokens else owner[:0]
