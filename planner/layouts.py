"""Layouts: (tokens, ranks, grain) -> the positions and the home of each block.

contiguous   A A A A B B B B C C C C     striped   A B C A B C A B C A B C
zigzag       A A B B C C C C B B A A     of 12 tokens on the ranks A, B and C
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from planner.errors import PlanError
from planner.partitions import Block, Partition, Ranges, Side
from planner.workload import Workload

Chunks = list[tuple[Ranges, int]]


def cut(tokens: int, parts: int) -> list[range]:
    """Consecutive ranges of nearly equal length; the remainder goes to the first ones."""
    size, more = divmod(tokens, parts)
    ends = [size * i + min(i, more) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def split(positions: Ranges, parts: int) -> list[Ranges]:
    """A piece cut into parts, each with nearly as much of every range of it."""
    cuts = [cut(len(part), parts) for part in positions]
    return [
        tuple(part[c[n].start : c[n].stop] for part, c in zip(positions, cuts, strict=True))
        for n in range(parts)
    ]


def contiguous(tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """Rank r owns the r-th of `ranks` consecutive pieces (Ring Attention, section 3)."""
    return [((piece,), rank) for rank, piece in enumerate(cut(tokens, ranks))]


def striped(tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """Token i belongs to rank (i // grain) mod ranks (Striped Attention, section 3)."""
    period, chunks = grain * ranks, Chunks()
    for rank in range(ranks):
        first = range(rank * grain, min(tokens, (rank + 1) * grain))
        if tokens <= period * grain:  # fewer stripes than tokens in one: a range per stripe
            starts = range(first.start, tokens, period)
            chunks.append((tuple(range(s, min(tokens, s + grain)) for s in starts), rank))
        else:
            chunks.append((tuple(range(s, tokens, period) for s in first), rank))
    return chunks


def zigzag(tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """Of 2 x ranks consecutive pieces, rank r owns the r-th from the front and from the back."""
    last = 2 * ranks - 1
    return [((piece,), min(i, last - i)) for i, piece in enumerate(cut(tokens, 2 * ranks))]


LAYOUTS: dict[str, Callable[[int, int, int], Chunks]] = {
    "contiguous": contiguous,
    "striped": striped,
    "zigzag": zigzag,
}
PEER_NAMES = {
    "contiguous": "the order of the sequence in every library",
    "striped": "stripe (ring-flash-attention), strip (yunchang), Striped (Transformer Engine JAX)",
    "zigzag": "zigzag (ring-flash-attention, yunchang), head-tail (PyTorch), dual-chunk swap"
    " (Transformer Engine, Megatron-LM, MaxText), causal halves (BurstAttention)",
}


def chunks_of(layout: str, tokens: int, ranks: int, grain: int = 1) -> Chunks:
    """The pieces of a named layout with their homes; grain in tokens, for stripes only."""
    if layout not in LAYOUTS:
        raise PlanError(f"unknown layout {layout!r}: choose one of {', '.join(LAYOUTS)}")
    if grain < 1:
        raise PlanError(f"grain must be at least 1 token, not {grain}")
    if grain > 1 and layout != "striped":
        raise PlanError(f"grain={grain} is for stripes; the layout is {layout}")
    return LAYOUTS[layout](tokens, ranks, grain)


def by_tokens(work: Workload, ranks: int, layout: str, grain: int = 1) -> Partition:
    """Both sides cut by the same layout, all heads together."""
    q = whole_heads(chunks_of(layout, work.seq, ranks, grain), work.heads)
    if (work.seq, work.heads) == (work.kv_seq, work.kv_heads):
        return Partition(q, q)  # what is found out about one side holds for the other
    return Partition(q, whole_heads(chunks_of(layout, work.kv_seq, ranks, grain), work.kv_heads))


def whole_heads(chunks: Chunks, heads: int) -> Side:
    """One block per piece with every head in it."""
    return Side(tuple(Block(positions, range(heads), home) for positions, home in chunks))


def by_heads(chunks: Chunks, slices: Sequence[range]) -> Side:
    """Each piece cut into head slices: block c * len(slices) + h is piece c, slice h."""
    return Side(tuple(Block(p, heads, home) for p, home in chunks for heads in slices))


def names(work: Workload, ranks: int, partition: Partition) -> str:
    """Returns the layout's names here and at its peers: "zigzag = ..." or "custom"."""
    held = [{b.positions for b in partition.q.blocks if b.home == r} for r in range(ranks)]
    for layout in LAYOUTS:
        own = [set[Ranges]() for _ in range(ranks)]
        for positions, home in chunks_of(layout, work.seq, ranks):
            own[home].add(Block(positions, range(1), home).positions)
        if own == held:
            return f"{layout} = {PEER_NAMES[layout]}"
    return f"custom, {len(partition.q.chunks)} query and {len(partition.kv.chunks)} KV pieces"
