"""jax_routes   a schedule as collectives in lockstep: what all devices of a mesh do at once.

    turn     ::= Turn(attends, routes)      one step: every device attends, and takes part in routes
    route    ::= Route(tensors, group, to, blocks)
    segment  ::= a few turns with the same collectives: turns of one loop

A route is one ppermute, or, where everybody sends to everybody else of a group of ranks, one
all-to-all or all-gather. Turns that need the same collectives become one loop, so what is compiled
does not grow with the ranks. All of this is written into emitted programs word for word.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from codegen.rows import Attend, Flags, Held, Ints, Move

Node = Attend | Move | Held


class Route(NamedTuple):
    """One collective: rank r sends `blocks[r, 0]` to rank `to[r]`, -1 is nobody; or, in a `group`
    of so many ranks, `blocks[r, m]` to member m of its group. A block of -1 is none."""

    tensors: tuple[str, ...]
    group: int
    to: Ints
    blocks: Ints


class Step(NamedTuple):
    """One step: what devices attend, and messages by what they carry."""

    attends: list[Attend]
    moves: dict[tuple[str, ...], list[Move]]


class Turn(NamedTuple):
    """One step: what devices attend, and collectives."""

    attends: list[Attend]
    routes: list[Route]


Loops = list[list[Turn]]


def steps_of(nodes: Iterable[Node]) -> list[Step]:
    """The steps of a schedule in order; rows, nodes and steps that do nothing are left out."""
    steps: dict[int, Step] = {}
    for node in nodes:
        if isinstance(node, Held):
            continue
        step = steps.setdefault(node.step, Step([], {}))
        if isinstance(node, Move):
            some = sent(node) if len(node.src) else node
            if len(some.src):
                step.moves.setdefault(node.tensors, []).append(some)
        elif node.q.max(initial=-1) >= 0 and node.kv.max(initial=-1) >= 0:
            step.attends.append(node)
    return [step for _, step in sorted(steps.items()) if any(step)]


def turn_of(step: Step, ranks: int) -> Turn:
    """The step with its messages as collectives."""
    routes = [collectives(moves, ranks) for moves in step.moves.values()]
    return Turn(step.attends, [route for same in routes for route in same])


def layers_of(attends: list[Attend], ranks: int) -> list[tuple[Ints, Ints]]:
    """Rectangles (q blocks [ranks, a], kv blocks [ranks, b]), one of each rank in a layer."""
    layers: list[tuple[Ints, Ints]] = []
    for node in attends:
        add_attend(layers, node, ranks)
    return layers


def add_attend(layers: list[tuple[Ints, Ints]], node: Attend, ranks: int) -> None:
    """Put rectangles where their rank has none yet, in a new layer if need be."""
    some = (node.q >= 0).any(axis=1) & (node.kv >= 0).any(axis=1)
    rank, q, kv = node.rank[some], node.q[some], node.kv[some]
    while len(rank):
        first = firsts(rank)
        mine = rank[first]
        taken = [n for n, layer in enumerate(layers) if (layer[0][mine] >= 0).any()]
        n = min({*range(len(layers) + 1)}.difference(taken))
        if n == len(layers):
            layers.append((np.full((ranks, 1), -1), np.full((ranks, 1), -1)))
        old_q, old_kv = layers[n]
        layers[n] = fill(old_q, mine, q[first]), fill(old_kv, mine, kv[first])
        rank, q, kv = rank[~first], q[~first], kv[~first]


def once(values: Ints) -> bool:
    """Whether no value appears twice."""
    return not len(values) or bool(np.bincount(values).max() == 1)


def firsts(values: Ints) -> Flags:
    """Where each value appears for the first time."""
    first = np.zeros(len(values), bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def fill(table: Ints, rows: Ints, values: Ints) -> Ints:
    """A table of its own with some rows replaced, as wide as the wider of both; -1 is nothing."""
    width = max(table.shape[-1], values.shape[-1])
    found = table.copy() if table.shape[-1] == width else widened(table, width)
    found[rows] = widened(values, width)
    return found


def widened(table: Ints, width: int) -> Ints:
    """The table with -1 in new last columns."""
    if table.shape[-1] == width:
        return table
    wide = np.full((*table.shape[:-1], width), -1)
    wide[..., : table.shape[-1]] = table
    return wide


def some_of(move: Move, some: Flags) -> Move:
    """Some of the messages."""
    if some.all():
        return move
    return Move(*move[:2], *(table[some] for table in move[2:]))


def sent(move: Move) -> Move:
    """The messages that have a block and leave their rank."""
    some = move.src != move.dst
    if move.blocks.min(initial=0) < 0:
        # By columns: `any` is slow along short rows.
        some &= np.asfortranarray(move.blocks >= 0).any(axis=1)
    return some_of(move, some)


def collectives(moves: list[Move], ranks: int) -> list[Route]:
    """Messages as one exchange in groups of ranks, if they fill most of it, or as permutations."""
    if sum(len(move.src) for move in moves) > ranks:
        src, dst = (np.concatenate([move[end] for move in moves]) for end in (3, 4))
        sizes = [u for u in range(2, ranks + 1) if ranks % u == 0]
        group = next(u for u in sizes if (src // u == dst // u).all())
        most = np.bincount(src).max() > 2 and 2 * len(src) >= ranks * (group - 1)
        if most and once(src * group + dst % group):
            return [whole_exchange(moves, ranks, group)]
    return [route_of(parts, ranks) for parts in joined(moves, ranks)]


def whole_exchange(moves: list[Move], ranks: int, group: int) -> Route:
    """Messages inside groups of ranks as one collective."""
    width = max(move.blocks.shape[1] for move in moves)
    blocks = np.full((ranks, group, width), -1)
    for move in moves:
        blocks[move.src, move.dst % group] = widened(move.blocks, width)
    return Route(moves[0].tensors, group, np.full(ranks, -1), blocks)


def permutations(move: Move) -> Iterator[Move]:
    """Messages in parts in which no rank sends twice or receives twice."""
    while not (once(move.src) and once(move.dst)):
        first = firsts(move.src)
        first[first] = firsts(move.dst[first])
        yield some_of(move, first)
        move = some_of(move, ~first)
    if len(move.src):
        yield move


def joined(moves: list[Move], ranks: int) -> list[list[Move]]:
    """Messages by the permutation they are part of: the first one in which their senders send
    nothing else and their receivers get nothing else."""
    parts = [part for move in moves for part in permutations(move)]
    if len(parts) == 1:
        return [parts]
    found: list[list[Move]] = []
    taken: list[int] = []  # the senders and receivers of each as bits of a number
    for part in parts:
        ends = np.zeros((2, ranks), bool)
        ends[0, part.src] = ends[1, part.dst] = True
        bits = int.from_bytes(np.packbits(ends).tobytes())
        n = next((n for n, some in enumerate(taken) if not some & bits), len(found))
        if n == len(found):
            found.append([])
            taken.append(0)
        found[n].append(part)
        taken[n] |= bits
    return found


def route_of(parts: list[Move], ranks: int) -> Route:
    """Messages as one permutation."""
    first, *more = parts
    if not more and np.array_equal(first.src, np.arange(ranks)):
        return Route(first.tensors, 0, first.dst, first.blocks[:, None])
    width = max(part.blocks.shape[1] for part in parts)
    to, blocks = np.full(ranks, -1), np.full((ranks, 1, width), -1)
    for part in parts:
        to[part.src] = part.dst
        blocks[part.src, 0] = widened(part.blocks, width)
    return Route(parts[0].tensors, 0, to, blocks)


def everybody_gets_the_same(route: Route) -> bool:
    """Whether an exchange is an all-gather: a rank sends the same to whomever it sends."""
    if not route.group or route.tensors[0] in ("OUT", "DQ", "DKV"):
        return False
    sent = route.blocks.max(axis=1, keepdims=True)
    return bool(((route.blocks == sent) | (route.blocks < 0)).all())


def arriving(route: Route) -> Ints:
    """The blocks that reach each rank, by sender: [ranks, members, w]."""
    blocks, group = route.blocks, route.group
    if group:
        table = blocks.reshape(-1, group, group, blocks.shape[-1]).swapaxes(1, 2)
        return table.reshape(blocks.shape)
    sender = np.flatnonzero(route.to >= 0)
    return fill(np.full_like(blocks, -1), route.to[sender], blocks[sender])


# ---- loops


def loops_of(steps: list[Step], ranks: int) -> Loops:
    """Neighbouring steps that can be turns of one loop, their permutations united."""
    loops: Loops = []
    for step in steps:
        add_turn(loops, turn_of(step, ranks))
    return list(map(with_ends, loops))


def add_turn(loops: Loops, turn: Turn) -> None:
    """Put a turn in the last loop, whose first turn has the collectives of all, or in a new one."""
    united = unite(loops[-1][0], turn) if loops else None
    if united is None:
        loops.append([turn])
    else:
        loops[-1].append(turn)
        loops[-1][0] = Turn(loops[-1][0].attends, united)


def unite(one: Turn, other: Turn) -> list[Route] | None:
    """The collectives of a turn with the senders and receivers of another; None if they differ."""
    if len(one.routes) != len(other.routes) or bool(one.attends) != bool(other.attends):
        return None
    united = []
    for a, b in zip(one.routes, other.routes, strict=True):
        to = both(a.to, b.to)
        same = everybody_gets_the_same(a) == everybody_gets_the_same(b)
        if (a.tensors, a.group) != (b.tensors, b.group) or to is None or not same:
            return None
        united.append(Route(a.tensors, a.group, to, a.blocks))
    return united


def both(one: Ints, other: Ints) -> Ints | None:
    """A permutation of ranks that has what two have, -1 is nobody; None if there is no such."""
    if np.array_equal(one, other):
        return one
    to, clash = np.maximum(one, other), (one != other) & (np.minimum(one, other) >= 0)
    return None if clash.any() or not once(to[to >= 0]) else to


def with_ends(loop: list[Turn]) -> list[Turn]:
    """Turns whose collectives have the senders, receivers and widths of the whole loop."""
    turns = [Turn(turn.attends, []) for turn in loop]
    for n, united in enumerate(loop[0].routes):
        width = max(turn.routes[n].blocks.shape[-1] for turn in loop)
        for done, turn in zip(turns, loop, strict=True):
            blocks = widened(turn.routes[n].blocks, width)
            done.routes.append(Route(united.tensors, united.group, united.to, blocks))
    return turns


def simpler(
    steps: list[Step],
    schedule: Callable[[], Iterable[Node]],
    ranks: int,
) -> Loops:
    """Loops with the messages that the mask leaves, unless these are irregular and those of a
    full mask, made by `schedule`, make less work."""
    loops: Loops = []
    full: Loops = []
    most, rounds = 0, sum(len(step.moves) for step in steps)  # at least
    for step in steps:
        turn = turn_of(step, ranks)
        add_turn(loops, turn)
        rounds += rounds_of(turn) - len(step.moves)
        if len(loops) == 5 and not full:
            full = loops_of(steps_of(schedule()), ranks)
            most = effort(full)
        if full and rounds + 2 * len(loops) > most:
            return full
    return list(map(with_ends, loops))


def effort(loops: Loops) -> int:
    """Rounds of messages, and twice the number of steps that have to be compiled."""
    return sum(rounds_of(turn) for loop in loops for turn in loop) + 2 * len(loops)


def rounds_of(turn: Turn) -> int:
    """The rounds of messages of one step."""
    return sum(max(route.group - 1, 1) for route in turn.routes)
