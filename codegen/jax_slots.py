"""jax_slots   where each device keeps each block: the tables that a program in lockstep reads.

Every tensor is one array [slots, ...] per device. Blocks at home have the first slots; a copy takes
the first slot whose last reader is done, a running sum one that was handed over; messages that only
pass through have none, see `jax_passing`. NOWHERE is read as anything and never written. All of
this is written into emitted programs word for word.
"""

from typing import NamedTuple

import numpy as np

from codegen.jax_passing import Passing, passing_copies, passing_sums, places
from codegen.jax_routes import (
    Loops,
    Route,
    Turn,
    arriving,
    everybody_gets_the_same,
    layers_of,
    widened,
)
from codegen.rows import Flags, Held, Ints

NOWHERE = 2**30  # the slot of what is not there
FOREVER = 2**30  # later than any step


class Slots:
    """The slots of one tensor on every rank, as they are at some step."""

    def __init__(self, home: Ints, blocks: int) -> None:
        ranks, self.fixed = home.shape
        self.slot = np.full((ranks, blocks + 1), NOWHERE)  # last column: block -1
        self.until = np.full((ranks, 0), -1)  # the step up to which a slot is in use
        self.owner = np.full((ranks, 0), -1)  # the block that a slot was last given to
        rank, column = np.nonzero(home >= 0)
        self.slot[rank, home[rank, column]] = column

    @property
    def size(self) -> int:
        """Slots of each rank, so far."""
        return int(self.fixed + self.until.shape[1])

    def find(self, blocks: Ints) -> Ints:
        """The slots of blocks [ranks, ...]."""
        rank = np.arange(len(blocks)).reshape(-1, *[1] * (blocks.ndim - 1))
        return self.slot[rank, blocks]

    def take(self, blocks: Ints, now: int, until: Ints) -> None:
        """Give free slots to blocks [ranks, n] that have none; until: [ranks, blocks + 1]."""
        for column in blocks.T:
            rank = np.flatnonzero(column >= 0)
            rank = rank[~self.has(rank, column[rank], now)]
            if not len(rank):
                continue
            if not (self.until[rank] <= now).any(axis=1).all():
                none = np.full((len(blocks), 1), -1)
                self.until = np.hstack([self.until, none])
                self.owner = np.hstack([self.owner, none])
            found, block = (self.until[rank] <= now).argmax(axis=1), column[rank]
            self.slot[rank, block] = self.fixed + found
            self.owner[rank, found] = block
            self.until[rank, found] = np.maximum(until[rank, block], now + 1)

    def has(self, rank: Ints, block: Ints, now: int) -> Flags:
        """Which of these blocks are on their ranks, in use beyond the step `now` or at home."""
        slot = self.slot[rank, block]
        if not self.until.shape[1]:
            return np.asarray(slot < self.fixed)
        place = np.clip(slot - self.fixed, 0, self.until.shape[1] - 1)
        mine = (self.owner[rank, place] == block) & (self.until[rank, place] > now)
        return np.asarray((slot < self.fixed) | ((slot < NOWHERE) & mine))

    def leave(self, blocks: Ints) -> None:
        """Free the slots of sums [ranks, n] that are handed over, but for those at home."""
        rank, column = np.nonzero(blocks >= 0)
        block = blocks[rank, column]
        slot = self.slot[rank, block]
        away = (slot >= self.fixed) & (slot < NOWHERE)
        self.until[rank[away], slot[away] - self.fixed] = -1
        self.slot[rank[away], block[away]] = NOWHERE


class Segment(NamedTuple):
    """Turns of one loop: collectives (tensors, kind, pairs or group size), and per turn and rank
    the slots and blocks that they and the attends are about, each [turns, ranks, ...]. Messages
    that only pass through are taken from slots where they begin and stored where they end, [ranks,
    n]; what attends say of them are places in the message."""

    turns: int
    collectives: list[tuple[tuple[str, ...], str, tuple[tuple[int, int], ...] | int]]
    sends: list[dict[str, Ints]]
    receives: list[dict[str, Ints]]
    attends: dict[str, Ints]
    begins: dict[str, Ints]
    ends: dict[str, Ints]


class Placement:
    """The slots of one pass, and its segments."""

    def __init__(
        self,
        loops: Loops,
        held: list[Held],
        homes: dict[str, Ints],
        blocks: dict[str, int],
        keep: dict[str, Ints],
    ) -> None:
        self.slots = {t: Slots(home, blocks[t]) for t, home in homes.items()}
        self.inputs = [t for t in homes if t not in ("OUT", "DQ", "DKV")]
        ranks = len(next(iter(homes.values())))
        turns = [turn for loop in loops for turn in loop]
        self.layers = [layers_of(turn.attends, ranks) for turn in turns]
        self.until = self.last_reads(turns, blocks)
        for tensor, kept in keep.items():
            self.until[tensor][np.arange(len(kept))[:, None], kept] = FOREVER
        self.held = {t: self.place_held(t, held) for t in self.inputs}
        now, self.segments = 0, list[Segment]()
        self.passing: dict[str, Passing] = {}
        for loop in loops:
            begins = self.pass_through(loop, now)
            rows = [self.turn(turn, now, n) for n, turn in enumerate(loop)]
            now += len(loop)
            self.segments.append(segment(loop[0], rows, begins))
        for tensor in list(self.passing):
            self.end(tensor, now)
        found = ((t, self.slots[t].find(kept)) for t, kept in keep.items())
        self.kept = {t: slots.astype("uint32") for t, slots in found}

    def side(self, tensor: str) -> int:
        """0 for tensors of queries, 1 for keys and values."""
        return int(tensor in ("KV", "DKV"))

    def last_reads(self, turns: list[Turn], blocks: dict[str, int]) -> dict[str, Ints]:
        """The last step that reads each block of each tensor, [ranks, blocks + 1]."""
        ranks = len(next(iter(self.slots.values())).slot)
        until = {t: np.full((ranks, n + 1), FOREVER) for t, n in blocks.items()}
        rank = np.arange(ranks)[:, None]
        for tensor in self.inputs:
            until[tensor][:] = -1
            for now, turn in enumerate(turns):
                for layer in self.layers[now]:
                    until[tensor][rank, layer[self.side(tensor)]] = now
                for route in turn.routes:
                    if tensor in route.tensors:
                        until[tensor][rank, route.blocks.reshape(ranks, -1)] = now
        return until

    def place_held(self, tensor: str, held: list[Held]) -> Ints:
        """The copies that a rank has from the start: blocks [ranks, slots away from home]."""
        slots = self.slots[tensor]
        for node in held:
            if tensor in node.tensors:
                blocks = np.full((len(slots.slot), node.blocks.shape[1]), -1)
                blocks[node.rank] = node.blocks
                slots.take(blocks, -1, self.until[tensor])
        found = np.full((len(slots.slot), slots.size - slots.fixed), -1)
        away = (slots.slot >= slots.fixed) & (slots.slot < NOWHERE)
        rank, block = np.nonzero(away)
        found[rank, slots.slot[rank, block] - slots.fixed] = block
        return found

    def pass_through(self, loop: list[Turn], now: int) -> dict[str, Ints]:
        """Find the messages that pass through a loop, end others, and return the slots of those
        that begin, [ranks, n]."""
        begins = {}
        for tensor, slots in self.slots.items():
            before = self.passing.get(tensor)
            found = self.passes(tensor, loop, now, before.after if before else None)
            if before and not found:
                self.end(tensor, now)
                before, found = None, self.passes(tensor, loop, now, None)
            if found:
                self.passing[tensor] = found
                if not before:
                    begins[tensor] = slots.find(found.begin).astype("uint32")
                if not before and tensor not in self.inputs:
                    slots.leave(found.begin)
        return begins

    def passes(
        self,
        tensor: str,
        loop: list[Turn],
        now: int,
        before: Ints | None,
    ) -> Passing | None:
        """How the blocks of a tensor pass through a loop, None if they do not."""
        none, side = np.full((len(self.slots[tensor].slot), 0), -1), self.side(tensor)
        attended = []
        for layers in self.layers[now : now + len(loop)]:
            attended.append(np.hstack([none, *(layer[side] for layer in layers)]))
        if tensor in self.inputs:
            read_later = self.until[tensor] >= now + len(loop)
            return passing_copies(tensor, loop, attended, before, read_later)
        held = self.slots[tensor].slot < NOWHERE
        return passing_sums(tensor, loop, attended, before, held)

    def end(self, tensor: str, now: int) -> None:
        """Store what a message brought before a step, if it is needed from then on."""
        blocks, until = self.passing.pop(tensor).after, self.until[tensor]
        needed = until[np.arange(len(blocks))[:, None], blocks] >= now
        blocks = np.where(needed, blocks, -1)
        self.slots[tensor].take(blocks, now - 1, until)
        slots = self.slots[tensor].find(blocks).astype("uint32")
        self.segments[-1].ends[tensor] = slots if (blocks >= 0).any() else slots[:, :0]

    def turn(self, turn: Turn, begin: int, n: int) -> dict[str, list[dict[str, Ints]]]:
        """The slots that the n-th turn of a loop is about; what arrives has its slots from the next
        turn on."""
        sends = [self.leaving(route) for route in turn.routes]
        attends = [self.rectangle(q, kv, begin, n) for q, kv in self.layers[begin + n]]
        receives = [self.coming(route, begin + n) for route in turn.routes]
        return {"sends": sends, "receives": receives, "attends": attends}

    def leaving(self, route: Route) -> dict[str, Ints]:
        """The slots that a collective sends, [ranks, n]; sums leave them."""
        blocks = route.blocks
        if everybody_gets_the_same(route):
            blocks = blocks.max(axis=1, keepdims=True)
        blocks = blocks.reshape(len(blocks), -1)
        tensors = [t for t in route.tensors if t not in self.passing]
        found = {t: self.slots[t].find(blocks) for t in tensors}
        for tensor in set(tensors).difference(self.inputs):
            self.slots[tensor].leave(blocks)
        return found

    def coming(self, route: Route, now: int) -> dict[str, Ints]:
        """The slots for what a collective brings, [ranks, n]."""
        blocks = arriving(route).reshape(len(route.blocks), -1)
        tensors = [t for t in route.tensors if t not in self.passing]
        for tensor in tensors:
            self.slots[tensor].take(blocks, now, self.until[tensor])
        return {t: self.slots[t].find(blocks) for t in tensors}

    def rectangle(self, q: Ints, kv: Ints, begin: int, n: int) -> dict[str, Ints]:
        """The blocks and slots of one rectangle per rank in the n-th turn of a loop, [ranks, n]
        each."""
        found = {"q": q, "kv": kv}
        for tensor, slots in self.slots.items():
            blocks = (q, kv)[self.side(tensor)]
            if tensor in self.passing:
                found[tensor] = places(blocks, self.passing[tensor].met[n], NOWHERE)
                continue
            if tensor not in self.inputs:
                slots.take(blocks, begin + n, self.until[tensor])
            found[tensor] = slots.find(blocks)
        return found


def segment(
    first: Turn,
    rows: list[dict[str, list[dict[str, Ints]]]],
    begins: dict[str, Ints],
) -> Segment:
    """The rows of the turns of one loop as tables, and its collectives."""
    collectives = []
    for route in first.routes:
        to = enumerate(route.to.tolist())
        pairs = tuple((src, dst) for src, dst in to if dst >= 0)
        kind = "all-gather" if everybody_gets_the_same(route) else "all-to-all"
        what = (kind, route.group) if route.group else ("permute", pairs)
        collectives.append((route.tensors, *what))
    sends, receives = (
        [stacked([row[way][n] for row in rows]) for n in range(len(collectives))]
        for way in ("sends", "receives")
    )
    layers = max(len(row["attends"]) for row in rows)
    attends = [[layer(row["attends"], n) for row in rows] for n in range(layers)]
    tables = stacked(list(map(stacked, attends)), axis=2)
    return Segment(len(rows), collectives, sends, receives, tables, begins, {})


def layer(rectangles: list[dict[str, Ints]], n: int) -> dict[str, Ints]:
    """The n-th rectangle of every rank, or one without blocks."""
    if n < len(rectangles):
        return rectangles[n]
    return {key: np.full_like(table, -1) for key, table in rectangles[0].items()}


def stacked(rows: list[dict[str, Ints]], axis: int = 0) -> dict[str, Ints]:
    """Tables of one name side by side on a new axis, made equally wide."""
    found: dict[str, Ints] = {}
    for key in rows[0] if rows else ():
        width = max(row[key].shape[-1] for row in rows)
        table = np.stack([widened(row[key], width) for row in rows], axis)
        empty = -1 if key in ("q", "kv") else NOWHERE
        kind = "int32" if key in ("q", "kv") else "uint32"
        found[key] = np.where(table < 0, empty, table).astype(kind)
    return found
