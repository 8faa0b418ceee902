"""Collects the rank and step of every mask tile, and the messages of each step.

Every live tile of each head is computed exactly once, so two tables describe all steps: the step
and the rank of every (query piece, key piece). Heads are cut at the ends of all blocks' slices;
each slice has its own tables.
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
from ringloom.planner.masks.areas import areas, sizes
from ringloom.planner.partitions import Ints, Ranges, shift
from ringloom.views.units import counted, numbers, size

PIXELS = 96  # along an edge of the picture; each piece gets a whole number of them
FINEST = 16  # most pixels of a piece
CUTS = 16  # head slices that have tables
MOST = 1 << 19  # head slices x tiles of one pass that a browser can hold
Columns = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TileFacts:
    """One pass of one schedule; steps count from 0, -1 marks tiles without a pair.

    `step`, `rank` [cuts, q pieces, kv pieces] of the first `heads`; `pairs` [q pieces, kv pieces]
    allowed pairs of a head; `shares` [q pixels, kv pixels] share of a pixel's pairs that are
    allowed.
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
    count: NDArray[np.int64]  # tiles attended, heads apart: [steps]
    messages: list["Message"]
    transfers: list[str]  # in words: [steps]

    @property
    def drawn_heads(self) -> tuple[str, ...]:
        """Returns the head slices that have tables."""
        return self.heads[: len(self.step)]

    @property
    def note(self) -> str:
        """Returns a sentence on head slices without a table, "" if all have one."""
        drawn, total = len(self.step), len(self.heads)
        return f"The first {drawn} of {total} head slices are shown." if drawn < total else ""

    @property
    def fine(self) -> tuple[int, int]:
        """Returns the pixels per piece: queries, keys."""
        (rows, columns), pixels = self.pairs.shape, self.shares.shape
        return pixels[0] // max(1, rows), pixels[1] // max(1, columns)

    def words(self, step: int) -> str:
        """Describes a step in one line."""
        busy, count = int(self.busy[step].sum()), int(self.count[step])
        verb = "attends" if busy == 1 else "attend"
        tiles = f"{busy} of {counted(self.ranks, 'rank')} {verb} {counted(count, 'tile')}"
        attends = tiles if busy else "no rank attends"
        return f"step {step + 1} of {self.steps}: {attends}; {self.transfers[step]}"


def most_cuts(plan: Plan) -> int:
    """Returns how many head slices can have tables; 0 if even one is too large to draw."""
    sides = plan.partition
    return min(CUTS, MOST // (len(sides.q.chunks) * len(sides.kv.chunks)))


def tables(passes: Sequence[tuple[str, Plan]]) -> tuple[tuple[TileFacts, ...], str]:
    """Returns the facts of titled passes, and a sentence on passes that are too large."""
    large = [title for title, plan in passes if not most_cuts(plan)]
    skipped = f"Too many tiles to draw step by step: {', '.join(large)}." if large else ""
    return tuple(tile_facts(*one) for one in passes if one[0] not in large), skipped


def tile_facts(title: str, plan: Plan) -> TileFacts:
    """Returns the facts of one verified pass; its `most_cuts` must be at least 1."""
    sides = plan.partition
    q, kv = sides.q.chunks, sides.kv.chunks
    edges = _head_edges(plan)
    shape = min(most_cuts(plan), len(edges) - 1), len(q), len(kv)
    busy, total, (at, who, a, b) = _attended(plan, edges[shape[0]])
    step, rank = np.full((2, *shape), -1, np.int32)
    slices = sides.q.slice[a], sides.kv.slice[b]
    first, last = (np.searchsorted(edges, heads)[slices] for heads in _heads(plan))
    for head in range(shape[0]):
        tile = np.flatnonzero((first <= head) & (head < last))
        place = head, sides.q.chunk[a[tile]], sides.kv.chunk[b[tile]]
        step[place], rank[place] = at[tile], who[tile]
    held = [np.flatnonzero(sizes(chunks)) for chunks in (q, kv)]
    every = np.ix_(np.arange(len(step)), *held)  # without empty pieces, which would be blank rows
    q, kv = (tuple(filter(_size, chunks)) for chunks in (q, kv))
    sent = messages(plan)
    return TileFacts(
        title,
        plan.ranks,
        len(plan.steps),
        tuple(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in pairwise(edges)),
        step[every],
        rank[every],
        tiles(plan).areas[np.ix_(*held)],
        _shares(plan, q, kv),
        (tuple(map(_name, q)), tuple(map(_name, kv))),
        busy,
        total,
        sent,
        _step_words(sent, len(plan.steps)),
    )


def _attended(
    plan: Plan, heads: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], tuple[Columns, ...]]:
    """Returns busy ranks [steps, ranks], live tiles per step, and the columns step, rank, query
    block and key block of the live tiles of the first heads."""
    busy = np.zeros((len(plan.steps), plan.ranks), np.bool_)
    count = np.zeros(len(plan.steps), np.int64)
    parts = [np.zeros((4, 0), np.int32)]
    first = np.array([s.start for s in plan.partition.q.slices])[plan.partition.q.slice]
    for number, attend in plan.attends():
        live = tiles(plan).live(attend.q[:, :, None], attend.kv[:, None, :])
        busy_rows = live.any(axis=(1, 2))
        busy[number, attend.rank[busy_rows]] = True
        count[number] += np.count_nonzero(live)
        drawn = np.flatnonzero(((first[attend.q] < heads) & (attend.q >= 0)).any(axis=1))
        rows, i, j = np.nonzero(live[drawn])
        rows = drawn[rows]
        columns = np.empty((4, len(rows)), np.int32)
        columns[0], columns[1] = number, attend.rank[rows]
        columns[2], columns[3] = attend.q[rows, i], attend.kv[rows, j]
        parts.append(columns)
    return busy, count, tuple(np.concatenate(parts, axis=1))


def _head_edges(plan: Plan) -> list[int]:
    """Returns the query heads at which a slice of either side begins or ends."""
    sides, group = plan.partition, plan.workload.group
    ends = {e for s in sides.q.slices for e in (s.start, s.stop)}
    return sorted(ends | {e * group for s in sides.kv.slices for e in (s.start, s.stop)})


def _heads(plan: Plan) -> tuple[NDArray[np.int64], ...]:
    """Returns the first query head that slices (q, kv) share, and the one after the last."""
    sides, group = plan.partition, plan.workload.group
    q_heads = np.array([(s.start, s.stop) for s in sides.q.slices])
    kv_heads = np.array([(s.start, s.stop) for s in sides.kv.slices]) * group
    return (
        np.maximum.outer(q_heads[:, 0], kv_heads[:, 0]),
        np.minimum.outer(q_heads[:, 1], kv_heads[:, 1]),
    )


def _shares(plan: Plan, q: tuple[Ranges, ...], kv: tuple[Ranges, ...]) -> NDArray[np.float64]:
    """Returns the exact share of allowed pairs of every pixel: [q pixels, kv pixels]."""
    offset = plan.workload.offset
    rows = [shift(p, offset) for p in _pieces(q)]
    columns = _pieces(kv)
    count = areas(plan.workload.mask.region(), rows, columns)
    full = np.multiply.outer(sizes(rows), sizes(columns))
    return np.divide(count, full, out=np.zeros(count.shape), where=full > 0)


def _pieces(chunks: tuple[Ranges, ...]) -> list[Ranges]:
    """Cuts each chunk along its tokens into one part per pixel."""
    shortest = min((_size(c) for c in chunks if _size(c)), default=1)
    parts = max(1, min(FINEST, PIXELS // max(1, len(chunks)), shortest))
    return [piece for chunk in chunks for piece in _parts(chunk, parts)]


def _parts(chunk: Ranges, parts: int) -> list[Ranges]:
    """Cuts consecutive ranges at tokens, and each of several interleaved ranges by itself."""
    if len(chunk) == 1 or any(a[-1] >= b[0] for a, b in pairwise(chunk)):
        return split(chunk, parts)
    ends = np.cumsum([0, *map(len, chunk[:-1])]).tolist()
    return [
        tuple(r[max(0, c.start - e) : max(0, c.stop - e)] for r, e in zip(chunk, ends, strict=True))
        for c in cut(_size(chunk), parts)
    ]


def _size(positions: Ranges) -> int:
    return sum(map(len, positions))


def _name(positions: Ranges) -> str:
    """Returns the tokens of a piece as text: 0-255; 3, 11, 19 ... 251."""
    if len(positions) != 1:
        return f"{_size(positions)} tokens starting at {min((p[0] for p in positions), default=0)}"
    (one,) = positions
    if one.step == 1 or len(one) == 1:
        return numbers(one) if len(one) == 1 else f"{one[0]}-{one[-1]}"
    return f"{one[0]}, {one[1]} ... {one[-1]}"


# ---- messages


class Message(NamedTuple):
    """One message of a step; its name lists tensors and blocks: KV,DKV 0-3+7."""

    step: int
    src: int
    dst: int
    bytes: int
    tensors: tuple[str, ...]
    blocks: Ints

    @property
    def name(self) -> str:
        """Returns its tensors, and its blocks with runs shortened."""
        return f"{','.join(self.tensors)} {numbers(self.blocks)}"


def messages(plan: Plan) -> list[Message]:
    """Returns all messages of a plan, in order."""
    every = list[Message]()
    for number, move in plan.moves():
        ends = move.src.tolist(), move.dst.tolist(), message_bytes(plan, number, move).tolist()
        for src, dst, sent, blocks in zip(*ends, move.blocks, strict=True):
            every.append(Message(number, src, dst, sent, move.tensors, blocks[blocks >= 0]))
    return every


def _step_words(messages: list[Message], steps: int) -> list[str]:
    """Describes the messages of each step: "KV: 7 transfers, 3.5 GiB"."""
    words = dict.fromkeys(range(steps), "no transfers")
    for step, here in groupby(messages, attrgetter("step")):
        sent = list(here)
        names = sorted({tensor for message in sent for tensor in message.tensors})
        ways = len({(message.src, message.dst) for message in sent})
        transfers, total = counted(ways, "transfer"), size(sum(m.bytes for m in sent))
        words[step] = f"{', '.join(names)}: {transfers}, {total}"
    return list(words.values())
