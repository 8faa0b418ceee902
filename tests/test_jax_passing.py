"""Slots and messages of JAX programs: rectangles read the blocks that they are about, wherever
these are kept, and whatever is added to a sum is in it once."""

from collections import Counter
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from codegen import emit
from codegen.jax_routes import Loops
from codegen.jax_slots import NOWHERE, Placement, Segment
from codegen.rows import Ints
from planner.masks import Causal, Full, Mask, Window
from planner.planning import plan
from planner.schedules import SCHEDULES
from planner.workload import Workload
from strategies import ring_loops

SUMS = "OUT", "DQ", "DKV"
Slot = Any  # the number of a block or, of a sum, a Counter of what was added to it
Parts = list[list[Slot]]  # of every rank
Added = Counter[tuple[str, int, int, int]]  # tensor, block, turn, rank


class Devices:
    """What `follow` of an emitted program does, on all devices, with blocks by their number."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.now = placement, 0
        self.ranks = range(len(next(iter(placement.slots.values())).slot))
        self.stores = {tensor: self.at_first(tensor) for tensor in placement.slots}
        self.passing: dict[str, Parts] = {}
        self.added: Added = Counter()
        for segment in placement.segments:
            for tensor, slots in segment.begins.items():
                self.passing[tensor] = self.taken(tensor, slots)
            for turn in range(segment.turns):
                self.turn(segment, turn)
            for tensor, slots in segment.ends.items():
                self.put(tensor, slots, self.passing.pop(tensor))

    def at_first(self, tensor: str) -> Parts:
        """The slots of a tensor with the blocks at home and held copies."""
        slots = self.placement.slots[tensor]
        found: Parts = [[None] * slots.size for _ in self.ranks]
        for rank, block in np.argwhere(slots.slot < slots.fixed):
            found[rank][slots.slot[rank, block]] = int(block)
        for rank, held in enumerate(self.placement.held.get(tensor, ())):
            found[rank][slots.fixed : slots.fixed + len(held)] = held.tolist()
        return [[Counter() for _ in part] for part in found] if tensor in SUMS else found

    def taken(self, tensor: str, slots: Any) -> Parts:
        """What is in some slots of each device; of sums nothing stays there."""
        found: Parts = []
        for store, some in zip(self.stores[tensor], slots, strict=True):
            found.append([store[slot] if slot < NOWHERE else None for slot in some])
            for slot in some[some < NOWHERE] if tensor in SUMS else ():
                store[slot] = Counter()
        return found

    def put(self, tensor: str, slots: Any, parts: Parts) -> None:
        """Store copies, add sums."""
        for store, some, blocks in zip(self.stores[tensor], slots, parts, strict=True):
            for slot, block in zip(some, blocks, strict=False):
                if slot < NOWHERE:
                    store[slot] = store[slot] + block if tensor in SUMS else block

    def turn(self, segment: Segment, turn: int) -> None:
        """Send, attend what was there before, store what came."""
        came: list[tuple[str, Any, Parts]] = []
        for n, (tensors, kind, ends) in enumerate(segment.collectives):
            for tensor in tensors:
                sent, slots = self.passing.get(tensor), None
                if sent is None:
                    sent = self.taken(tensor, segment.sends[n][tensor][turn])
                    slots = segment.receives[n][tensor][turn]
                came.append((tensor, slots, exchanged(kind, ends, sent)))
        met = self.stores | self.passing
        for tensor in [t for t in self.passing if t in SUMS]:
            met[tensor] = [[Counter() for _ in part] for part in met[tensor]]
        if segment.attends:
            self.attend({key: table[turn] for key, table in segment.attends.items()}, met)
        for tensor, slots, parts in came:
            if slots is not None:
                self.put(tensor, slots, parts)
            elif tensor in SUMS:
                pairs = zip(met[tensor], parts, strict=True)
                self.passing[tensor] = [
                    [a + (b or Counter()) for a, b in zip(*x, strict=True)] for x in pairs
                ]
            else:
                self.passing[tensor] = parts
        self.now += 1

    def attend(self, row: dict[str, Any], met: dict[str, Parts]) -> None:
        """Every rectangle reads the blocks that it is about, and adds to their sums."""
        for rank, n, tensor in product(self.ranks, range(row["q"].shape[1]), self.stores):
            blocks = row["kv" if tensor in ("KV", "DKV") else "q"][rank, n]
            for block, slot in zip(blocks, row[tensor][rank, n], strict=True):
                if block >= 0 and tensor in SUMS:
                    what = tensor, int(block), self.now, rank
                    self.added[what] += 1
                    met[tensor][rank][slot][what] += 1
                elif block >= 0:
                    assert met[tensor][rank][slot] == block

    def sums(self, tensor: str) -> list[dict[int, Added]]:
        """What is in the sums of each device, by block."""
        slots, found = self.placement.slots[tensor], [dict[int, Added]() for _ in self.ranks]
        for rank, block in np.argwhere(slots.slot < NOWHERE):
            found[rank][int(block)] = self.stores[tensor][rank][slots.slot[rank, block]]
        return [{block: some for block, some in sums.items() if some} for sums in found]


def exchanged(kind: str, ends: Any, sent: Parts) -> Parts:
    """What every rank gets."""
    if kind == "permute":
        found: Parts = [[None] * len(part) for part in sent]
        for src, dst in ends:
            found[dst] = sent[src]
        return found
    groups = [range(a, a + ends) for a in range(0, len(sent), ends)]
    if kind == "all-gather":
        return [[x for rank in some for x in sent[rank]] for some in groups for _ in some]
    width = len(sent[0]) // ends
    cuts = [slice(n * width, n * width + width) for n in range(ends)]
    return [[x for rank in some for x in sent[rank][cut]] for some in groups for cut in cuts]


def placements(schedule: str, work: Workload, ranks: int) -> list[Placement]:
    """The slots of both passes as an emitted program finds them."""
    module = ModuleType("emitted")
    exec(emit(plan(schedule, work, ranks, pass_="both"), "jax"), module.__dict__)
    return [setup.placement for setup in module.setups(work.seq, work.kv_seq)]


@pytest.mark.parametrize("mask", [Full(), Causal(), Causal() & Window(9)], ids=str)
@pytest.mark.parametrize("schedule", [*SCHEDULES, "usp:ulysses=2", "allgather:keep=1"])
def test_rectangles_read_their_blocks_and_sums_come_home(schedule: str, mask: Mask) -> None:
    for ranks, heads in product((3, 4, 6, 8), (2, 8)):
        work = Workload(41, heads=heads, kv_heads=2, head_dim=4, mask=mask, dtype="float64")
        if "ulysses=2" in schedule and ranks % 2:
            continue
        for placement in placements(schedule, work, ranks):
            devices, found = Devices(placement), Counter[tuple[str, int, int, int]]()
            for tensor, slots in placement.slots.items():
                for rank, sums in enumerate(devices.sums(tensor) if tensor in SUMS else ()):
                    assert all(slots.slot[rank, block] < slots.fixed for block in sums)
                    assert all(what[:2] == (tensor, b) for b, some in sums.items() for what in some)
                    found += sum(sums.values(), Counter())
            assert found == devices.added


@settings(max_examples=300)
@given(ring_loops())
def test_rectangles_of_any_ring_read_their_blocks_and_sums_go_where_they_are_sent(
    case: tuple[Loops, Ints],
) -> None:
    loops, homes = case
    where = {"Q": homes, "KV": homes, "DQ": homes, "DKV": homes}
    devices = Devices(Placement(loops, [], where, dict.fromkeys(where, homes.size), {}))
    assert devices.sums("DKV") == sums_of(loops, len(homes))


def sums_of(loops: Loops, ranks: int) -> list[dict[int, Added]]:
    """The sums of DKV on each rank after all turns, as they are meant."""
    sums = [dict[int, Added]() for _ in range(ranks)]
    for now, turn in enumerate(turn for loop in loops for turn in loop):
        sent = [
            (int(dst), block, sums[rank].pop(block, Counter()))
            for route in turn.routes
            for rank, dst in enumerate(route.to)
            for block in route.blocks[rank, 0].tolist()
            if route.tensors == ("DKV",)
        ]
        for rank, block in enumerate(turn.attends[0].kv.tolist()):
            sent += [(rank, b, Counter({("DKV", b, now, rank): 1})) for b in block if b >= 0]
        for dst, block, some in sent:
            sums[dst][block] = sums[dst].get(block, Counter()) + some
    return [{block: some for block, some in found.items() if some} for found in sums]


@pytest.mark.parametrize("mask", [Full(), Causal()], ids=str)
@pytest.mark.parametrize("schedule", ["ring", "striped", "zigzag"])
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_what_goes_around_a_ring_needs_no_slots(schedule: str, ranks: int, mask: Mask) -> None:
    work = Workload(8 * ranks, heads=2, head_dim=4, mask=mask, dtype="float64")
    for placement in placements(schedule, work, ranks):
        assert all(slots.size == slots.fixed for slots in placement.slots.values())
        assert any("KV" in segment.begins for segment in placement.segments)
