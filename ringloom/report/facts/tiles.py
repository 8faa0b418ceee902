"""Collects the rank and step of every mask tile, and the messages of each step.

Every live tile of a head is computed exactly once, so two tables describe all steps: the step and
the rank of every (query piece, key piece). Each slice of heads has its own tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import Plan
from ringloom.planner.layouts import cut, split
from ringloom.planner.masks.areas import count_pairs, count_positions
from ringloom.planner.partitions import Ints, Ranges, shift_ranges
from ringloom.views.units import counted, numbers, size

PIXELS = 96  # along an edge of the picture; each piece gets a whole number of them
MOST_PIXELS = 16  # of a piece
MOST_SLICES = 16  # head slices with tables
MOST_TILES = 1 << 19  # head slices x tiles of a pass that a browser can hold
Columns = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TileFacts:
    """The tiles and messages of one pass; steps count from 0, -1 marks tiles without a pair.

    `step`, `rank` [slices, q pieces, kv pieces] of the first head slices; `pairs` [q pieces, kv
    pieces] allowed pairs of a head; `shares` [q pixels, kv pixels] share of a pixel's pairs that
    are allowed.
    """

    title: str
    ranks: int
    steps: int
    heads: tuple[str, ...]
    step: NDArray[np.int32]
    rank: NDArray[np.int32]
    pairs: NDArray[np.int64]
    shares: NDArray[np.float64]
    names: tuple[tuple[str, ...], tuple[str, ...]]  # of the pieces: queries, keys
    busy: NDArray[np.bool_]  # ranks that attend: [steps, ranks]
    count: NDArray[np.int64]  # tiles attended, separately for each slice of heads: [steps]
    messages: list["Message"]
    transfers: list[str]  # descriptions: [steps]

    @property
    def shown_heads(self) -> tuple[str, ...]:
        """Returns the head slices that have tables."""
        return self.heads[: len(self.step)]

    @property
    def note(self) -> str:
        """Returns a sentence on head slices without a table, "" if all have one."""
        shown, total = len(self.step), len(self.heads)
        return f"The first {shown} of {total} head slices are shown." if shown < total else ""

    @property
    def pixels_per_piece(self) -> tuple[int, int]:
        """Returns the pixels per piece: queries, keys."""
        (rows, columns), pixels = self.pairs.shape, self.shares.shape
        return pixels[0] // max(1, rows), pixels[1] // max(1, columns)

    def words(self, step: int) -> str:
        """Describes a step in one line."""
        busy, count = int(self.busy[step].sum()), int(self.count[step])
        verb = "attends" if busy == 1 else "attend"
        tiles = counted(count, "tile", "{:,}".format)
        ranks = f"{busy} of {counted(self.ranks, 'rank')}"
        attends = f"{ranks} {verb} {tiles}" if busy else "no rank attends"
        return f"step {step + 1} of {self.steps}: {attends}; {self.transfers[step]}"


def most_slices(plan: Plan) -> int:
    """Returns the maximum number of head slices with tables; 0 if a single one is too large."""
    sides = plan.partition
    return min(MOST_SLICES, MOST_TILES // (len(sides.q.chunks) * len(sides.kv.chunks)))


def tables(passes: Sequence[tuple[str, Plan]]) -> tuple[tuple[TileFacts, ...], str]:
    """Returns the facts of (title, plan) pairs, and a sentence on plans that are too large."""
    large = [title for title, plan in passes if not most_slices(plan)]
    skipped = f"Too many tiles to draw step by step: {', '.join(large)}." if large else ""
    return tuple(tile_facts(title, plan) for title, plan in passes if title not in large), skipped


def tile_facts(title: str, plan: Plan) -> TileFacts:
    """Returns the facts of a verified plan, whose `most_slices` must be at least 1."""
    sides = plan.partition
    q, kv = sides.q.chunks, sides.kv.chunks
    edges = _head_edges(plan)
    shape = min(most_slices(plan), len(edges) - 1), len(q), len(kv)
    busy, count, (tile_step, tile_rank, i, j) = _attended(plan, edges[shape[0]])
    step, rank = np.full((2, *shape), -1, np.int32)
    slices = sides.q.slice[i], sides.kv.slice[j]
    first, end = (np.searchsorted(edges, heads)[slices] for heads in _shared_heads(plan))
    for head in range(shape[0]):
        tile = np.flatnonzero((first <= head) & (head < end))
        cell = head, sides.q.chunk[i[tile]], sides.kv.chunk[j[tile]]
        step[cell], rank[cell] = tile_step[tile], tile_rank[tile]
    # Empty pieces would be blank rows.
    non_empty = [np.flatnonzero(count_positions(chunks)) for chunks in (q, kv)]
    cells = np.ix_(np.arange(len(step)), *non_empty)
    q, kv = (tuple(filter(_size, chunks)) for chunks in (q, kv))
    sent = messages(plan)
    return TileFacts(
        title,
        plan.ranks,
        len(plan.steps),
        tuple(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in pairwise(edges)),
        step[cells],
        rank[cells],
        tiles(plan).areas[np.ix_(*non_empty)],
        _shares(plan, q, kv),
        (tuple(map(_name, q)), tuple(map(_name, kv))),
        busy,
        count,
        sent,
        _describe_steps(sent, len(plan.steps)),
    )


def _attended(
    plan: Plan, heads: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], tuple[Columns, ...]]:
    """Returns busy ranks [steps, ranks], the number of live tiles per step, and (step, rank, query
    block, key block) columns of the live tiles of the first heads."""
    busy = np.zeros((len(plan.steps), plan.ranks), np.bool_)
    count = np.zeros(len(plan.steps), np.int64)
    parts = [np.zeros((4, 0), np.int32)]
    first = np.array([s.start for s in plan.partition.q.slices])[plan.partition.q.slice]
    for number, attend in plan.attends():
        live = tiles(plan).live(attend.q[:, :, None], attend.kv[:, None, :])
        busy_rows = live.any(axis=(1, 2))
        busy[number, attend.rank[busy_rows]] = True
        count[number] += np.count_nonzero(live)
        selected = np.flatnonzero(((first[attend.q] < heads) & (attend.q >= 0)).any(axis=1))
        rows, i, j = np.nonzero(live[selected])
        rows = selected[rows]
        columns = np.empty((4, len(rows)), np.int32)
        columns[0], columns[1] = number, attend.rank[rows]
        columns[2], columns[3] = attend.q[rows, i], attend.kv[rows, j]
        parts.append(columns)
    return busy, count, tuple(np.concatenate(parts, axis=1))


def _head_edges(plan: Plan) -> list[int]:
    """Returns the query heads at which a slice of either side begins or ends."""
    sides, group = plan.partition, plan.workload.group
    edges = {edge for s in sides.q.slices for edge in (s.start, s.stop)}
    return sorted(edges | {edge * group for s in sides.kv.slices for edge in (s.start, s.stop)})


def _shared_heads(plan: Plan) -> tuple[NDArray[np.int64], ...]:
    """Returns the range of query heads that slices share: first and end, both [q, kv slices]."""
    sides, group = plan.partition, plan.workload.group
    q_heads = np.array([(s.start, s.stop) for s in sides.q.slices])
    kv_heads = np.array([(s.start, s.stop) for s in sides.kv.slices]) * group
    return (
        np.maximum.outer(q_heads[:, 0], kv_heads[:, 0]),
        np.minimum.outer(q_heads[:, 1], kv_heads[:, 1]),
    )


def _shares(plan: Plan, q: tuple[Ranges, ...], kv: tuple[Ranges, ...]) -> NDArray[np.float64]:
    """Returns the exact share of allowed pairs in every pixel: [q pixels, kv pixels]."""
    offset = plan.workload.offset
    rows = [shift_ranges(p, offset) for p in _pieces(q)]
    columns = _pieces(kv)
    count = count_pairs(plan.workload.mask.region(), rows, columns)
    full = np.multiply.outer(count_positions(rows), count_positions(columns))
    return np.divide(count, full, out=np.zeros(count.shape), where=full > 0)


def _pieces(chunks: tuple[Ranges, ...]) -> list[Ranges]:
    """Cuts each chunk along its tokens into one part per pixel."""
    shortest = min((_size(c) for c in chunks if _size(c)), default=1)
    parts = max(1, min(MOST_PIXELS, PIXELS // max(1, len(chunks)), shortest))
    return [piece for chunk in chunks for piece in _cut(chunk, parts)]


def _cut(chunk: Ranges, parts: int) -> list[Ranges]:
    """Cuts a chunk along its tokens; cuts each range separately if they are interleaved."""
    if len(chunk) == 1 or any(a[-1] >= b[0] for a, b in pairwise(chunk)):
        return split(chunk, parts)
    starts = np.cumsum([0, *map(len, chunk[:-1])]).tolist()
    return [
        tuple(
            positions[max(0, c.start - start) : max(0, c.stop - start)]
            for positions, start in zip(chunk, starts, strict=True)
        )
        for c in cut(_size(chunk), parts)
    ]


def _size(positions: Ranges) -> int:
    return sum(map(len, positions))


def _name(positions: Ranges) -> str:
    """Returns the tokens of a piece as text, such as 0-255 or 3, 11 ... 251."""
    if len(positions) != 1:
        return f"{_size(positions)} tokens starting at {min((p[0] for p in positions), default=0)}"
    (tokens,) = positions
    if tokens.step == 1 or len(tokens) == 1:
        return numbers(tokens) if len(tokens) == 1 else f"{tokens[0]}-{tokens[-1]}"
    return f"{tokens[0]}, {tokens[1]} ... {tokens[-1]}"


# ---- messages


class Message(NamedTuple):
    """A message of a step."""

    step: int
    src: int
    dst: int
    bytes: int
    tensors: tuple[str, ...]
    blocks: Ints

    @property
    def name(self) -> str:
        """Returns the tensors and blocks as text: KV,DKV 0-3+7."""
        return f"{','.join(self.tensors)} {numbers(self.blocks)}"


def messages(plan: Plan) -> list[Message]:
    """Returns all messages of a plan, in order."""
    sent = list[Message]()
    for number, move in plan.moves():
        columns = move.src.tolist(), move.dst.tolist(), message_bytes(plan, number, move).tolist()
        for src, dst, sent_bytes, blocks in zip(*columns, move.blocks, strict=True):
            sent.append(Message(number, src, dst, sent_bytes, move.tensors, blocks[blocks >= 0]))
    return sent


def _describe_steps(messages: list[Message], steps: int) -> list[str]:
    """Describes the messages of each step: "KV: 7 transfers, 3.5 GiB"."""
    words = dict.fromkeys(range(steps), "no transfers")
    for step, group in groupby(messages, attrgetter("step")):
        sent = list(group)
        names = sorted({tensor for message in sent for tensor in message.tensors})
        pairs = len({(message.src, message.dst) for message in sent})
        transfers, total = counted(pairs, "transfer"), size(sum(m.bytes for m in sent))
        words[step] = f"{', '.join(names)}: {transfers}, {total}"
    return list(words.values())
