"""order   what each rank does, in order, with a slot for everything it holds away from home.

    turn    ::= Turn(step, receives, sends, attends, frees)
                posts receives and sends, computes, waits for both, then frees slots
    message ::= Message(tensors, blocks, peer, slots)     slots: one per tensor and block received

A copy has its slot from the step in which it is received to the one in which it is last read; a
sum from when it is begun, or arrives, until it is handed over. The lowest free slot is taken, so
the two buffers of a ring come out of it. A sum that arrives at home needs no slot: -1.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from codegen.lowering import Layout, Schedule
from codegen.rows import Attend, Held, Move
from planner.errors import PlanError
from planner.ir import ADDS, READS, TENSORS

HOME = -1
Place = tuple[str, int]  # tensor, block


@dataclass(frozen=True)
class Message:
    """Blocks of some tensors to or from a peer; `slots` is empty in what is sent."""

    tensors: tuple[str, ...]
    blocks: tuple[int, ...]
    peer: int
    slots: tuple[int, ...] = ()

    @property
    def places(self) -> list[Place]:
        """(tensor, block) in the order of the slots."""
        return [(tensor, block) for tensor in self.tensors for block in self.blocks]


@dataclass
class Turn:
    """One step of one rank; `begins` are the sums that its attends begin, with their slots."""

    step: int
    receives: list[Message] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    attends: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    begins: dict[Place, int] = field(default_factory=dict)
    frees: list[Place] = field(default_factory=list)


@dataclass
class Order:
    """The turns of one rank, what it holds at the start, and how many slots each tensor needs."""

    rank: int
    start: dict[Place, int]
    turns: list[Turn]
    slots: dict[str, int]


def orders(schedule: Schedule, layout: Layout, ranks: int, backward: bool) -> list[Order]:
    """The order of every rank, its slots assigned by when things are received and last read."""
    turns: list[dict[int, Turn]] = [{} for _ in range(ranks)]
    held: list[list[Place]] = [[] for _ in range(ranks)]

    def turn(rank: int, step: int) -> Turn:
        return turns[rank].setdefault(step, Turn(step))

    for node in schedule.nodes:
        match node:
            case Held(tensors, rows, at):
                for blocks, rank in zip(rows, at.tolist(), strict=True):
                    held[rank] += [(t, b) for t in tensors for b in _some(blocks)]
            case Move(step, tensors, rows, sources, targets):
                ends = zip(rows, sources.tolist(), targets.tolist(), strict=True)
                for blocks, src, dst in ends:
                    turn(src, step).sends.append(Message(tensors, _some(blocks), dst))
                    turn(dst, step).receives.append(Message(tensors, _some(blocks), src))
            case Attend(step, at, q, kv):
                for rank, a, b in zip(at.tolist(), q, kv, strict=True):
                    turn(rank, step).attends.append((_some(a), _some(b)))
    homes = _homes(layout)
    return [
        _assign(rank, [mine[step] for step in sorted(mine)], held[rank], homes, backward)
        for rank, mine in enumerate(turns)
    ]


def _some(blocks: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(block) for block in blocks if block >= 0)


def _homes(layout: Layout) -> dict[str, list[int]]:
    sides = (("q", layout.q, layout.q_slices), ("kv", layout.kv, layout.kv_slices))
    return {name: [home for _, home in pieces for _ in slices] for name, pieces, slices in sides}


class Slots:
    """Which slots of each tensor are taken."""

    def __init__(self) -> None:
        self.taken = defaultdict[str, set[int]](set)
        self.most = defaultdict[str, int](int)

    def take(self, tensor: str) -> int:
        """The lowest free slot of a tensor."""
        mine = self.taken[tensor]
        slot = next(n for n in range(len(mine) + 1) if n not in mine)
        mine.add(slot)
        self.most[tensor] = max(self.most[tensor], slot + 1)
        return slot


def _assign(
    rank: int, turns: list[Turn], held: list[Place], homes: dict[str, list[int]], backward: bool
) -> Order:
    """Give slots to everything that is away from home on one rank."""
    sums = ADDS["backward" if backward else "forward"]
    last = {place: turn.step for turn in turns for place in reads(turn, backward)}
    slots, where = Slots(), dict[Place, int]()

    def away(place: Place) -> bool:
        return homes[TENSORS[place[0]].side][place[1]] != rank

    for place in held:
        where[place] = slots.take(place[0])
    start = dict(where)
    for turn in turns:
        handed = [p for m in turn.sends if m.tensors[0] in sums for p in m.places]
        leaving = [(place, where.pop(place)) for place in handed if place in where]
        for place in added(turn, backward):
            if away(place) and place not in where:
                where[place] = turn.begins[place] = slots.take(place[0])
        received = list[Message]()
        for message in turn.receives:
            given = [slots.take(p[0]) if away(p) else HOME for p in message.places]
            received.append(Message(message.tensors, message.blocks, message.peer, tuple(given)))
            for place, slot in zip(message.places, given, strict=True):
                if place in where:  # merged into the sum that is there; its own slot is free again
                    leaving.append((place, slot))
                elif slot != HOME:
                    where[place] = slot
        turn.receives = received
        turn.frees = [p for p in where if p[0] not in sums and last.get(p, -1) <= turn.step]
        leaving += [(place, where.pop(place)) for place in turn.frees]
        for place, slot in leaving:
            slots.taken[place[0]].discard(slot)
    return Order(rank, start, turns, dict(slots.most))


def reads(turn: Turn, backward: bool) -> list[Place]:
    """The inputs that a turn reads."""
    inputs = READS["backward" if backward else "forward"]
    found = [p for message in turn.sends for p in message.places if p[0] in inputs]
    return found + _of_attends(turn, inputs)


def added(turn: Turn, backward: bool) -> list[Place]:
    """The sums that a turn's attends add to."""
    return _of_attends(turn, ADDS["backward" if backward else "forward"])


def _of_attends(turn: Turn, tensors: Iterable[str]) -> list[Place]:
    return [
        (tensor, block)
        for tensor in tensors
        for q, kv in turn.attends
        for block in (q if TENSORS[tensor].side == "q" else kv)
    ]


# ---- the verifier


def verify_orders(orders: list[Order], layout: Layout, backward: bool) -> None:
    """Raise PlanError unless messages match, slots are free and nobody waits forever."""
    check_messages(orders)
    for order in orders:
        check_slots(order, _homes(layout), backward)
    check_progress(orders)


def check_messages(orders: list[Order]) -> None:
    """Between two ranks the sends of one are the receives of the other, in the same order."""
    sent, received = (defaultdict[tuple[int, int], list[object]](list) for _ in range(2))
    for order in orders:
        for turn in order.turns:
            for m in turn.sends:
                sent[order.rank, m.peer].append((turn.step, m.tensors, m.blocks))
            for m in turn.receives:
                received[m.peer, order.rank].append((turn.step, m.tensors, m.blocks))
    for pair in sorted({*sent, *received}):
        if sent[pair] != received[pair]:
            both = zip([*sent[pair], None], [*received[pair], None], strict=False)
            a, b = next((a, b) for a, b in both if a != b)
            raise PlanError(f"rank {pair[0]} sends {a}, but rank {pair[1]} receives {b}")


def check_slots(order: Order, homes: dict[str, list[int]], backward: bool) -> None:
    """What a turn reads is there, and what it receives or begins goes into free slots."""
    content = {(place[0], slot): place for place, slot in order.start.items()}
    sums = ADDS["backward" if backward else "forward"]
    for turn in order.turns:
        where, before = f"step {turn.step}: rank {order.rank}", dict(content)
        for tensor, block in reads(turn, backward):
            home = homes[TENSORS[tensor].side][block] == order.rank
            if not home and (tensor, block) not in before.values():
                raise PlanError(f"{where} reads {tensor} block {block}, which is not there")
        arrived = [pair for m in turn.receives for pair in zip(m.places, m.slots, strict=True)]
        for place, slot in [*turn.begins.items(), *arrived]:
            at = place[0], slot
            if slot != HOME and at in content:
                raise PlanError(f"{where} puts {place} into slot {slot}, where {content[at]} is")
            if slot != HOME:
                content[at] = place
        handed = {p for m in turn.sends if m.tensors[0] in sums for p in m.places}
        staying = {p for p in before.values() if p not in handed} | {*turn.begins}
        done = {at for at, place in before.items() if place in handed}
        done |= {at for at, place in content.items() if place in turn.frees}
        done |= {(p[0], slot) for p, slot in arrived if p in staying}  # merged into what is there
        content = {at: place for at, place in content.items() if at not in done}


def check_progress(orders: list[Order]) -> None:
    """Run the turns: a rank ends one when all its peers have posted theirs of the same step."""
    posted, at = set[tuple[int, int]](), dict.fromkeys((o.rank for o in orders), 0)
    moved = True
    while moved:
        moved = False
        for order in orders:
            while at[order.rank] < len(order.turns):
                turn = order.turns[at[order.rank]]
                posted.add((order.rank, turn.step))
                waits = [(m.peer, turn.step) for m in turn.receives + turn.sends]
                if not posted.issuperset(waits):
                    break
                at[order.rank] += 1
                moved = True
    if stuck := [o.rank for o in orders if at[o.rank] < len(o.turns)]:
        raise PlanError(f"ranks {stuck} wait forever")
