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


class Turn(NamedTuple):
    """One step: rectangles (q blocks [ranks, a], kv blocks [ranks, b]), and collectives."""

    attends: list[tuple[Ints, Ints]]
    routes: list[Route]


Loops = list[list[Turn]]


def turns_of(nodes: Iterable[Node], ranks: int) -> list[Turn]:
    """The steps of a schedule, in order."""
    steps: dict[int, Turn] = {}
    for node in nodes:
        if isinstance(node, Held):
            continue
        turn = steps.setdefault(node.step, Turn([], []))
        if isinstance(node, Attend):
            add_attend(turn.attends, node, ranks)
        else:
            for part in permutations(node):
                add_route(turn.routes, part, ranks)
    found = [steps[step] for step in sorted(steps) if any(steps[step])]
    return [Turn(turn.attends, joined_routes(turn.routes, ranks)) for turn in found]


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


def firsts(values: Ints) -> Flags:
    """Where each value appears for the first time."""
    if np.bincount(values).max() == 1:
        return np.ones(len(values), bool)
    first = np.zeros(len(values), bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def fill(table: Ints, rows: Ints, values: Ints) -> Ints:
    """The table with some rows replaced, as wide as the wider of both; -1 is nothing."""
    width = max(table.shape[-1], values.shape[-1])
    found = widened(table, width)
    found = found.copy() if found is table else found
    found[rows] = widened(values, width)
    return found


def widened(table: Ints, width: int) -> Ints:
    """The table with -1 in new last columns."""
    if table.shape[-1] == width:
        return table
    wide = np.full((*table.shape[:-1], width), -1)
    wide[..., : table.shape[-1]] = table
    return wide


def permutations(move: Move) -> Iterator[Move]:
    """Messages in parts in which no rank sends twice or receives twice."""
    some = (move.blocks >= 0).any(axis=1) & (move.src != move.dst)
    blocks, src, dst = move.blocks[some], move.src[some], move.dst[some]
    while len(src):
        first = firsts(src)
        first[first] = firsts(dst[first])
        yield Move(move.step, move.tensors, blocks[first], src[first], dst[first])
        blocks, src, dst = blocks[~first], src[~first], dst[~first]


def add_route(routes: list[Route], move: Move, ranks: int) -> None:
    """Send messages with a collective whose senders and receivers are all others, or a new one."""
    n = 0
    while n < len(routes) and (
        routes[n].tensors != move.tensors
        or (routes[n].to[move.src] >= 0).any()
        or receives(routes[n], ranks)[move.dst].any()
    ):
        n += 1
    if n == len(routes):
        nothing = np.full(ranks, -1), np.full((ranks, 1, 1), -1)
        routes.append(Route(move.tensors, 0, *nothing))
    to = routes[n].to.copy()
    to[move.src] = move.dst
    blocks = fill(routes[n].blocks, move.src, move.blocks[:, None])
    routes[n] = Route(move.tensors, 0, to, blocks)


def receives(route: Route, ranks: int) -> Flags:
    """Which ranks receive something from a permutation."""
    table = np.zeros(ranks, bool)
    table[route.to[route.to >= 0]] = True
    return table


def joined_routes(routes: list[Route], ranks: int) -> list[Route]:
    """The same with permutations that fill groups of ranks as one exchange each."""
    found: dict[tuple[str, ...], list[Route]] = {}
    for route in routes:
        found.setdefault(route.tensors, []).append(route)
    return [route for same in found.values() for route in whole_exchange(same, ranks)]


def whole_exchange(routes: list[Route], ranks: int) -> list[Route]:
    """One exchange in groups of ranks, if three or more permutations fill most of it."""
    if len(routes) < 3:
        return routes
    src = np.concatenate([np.flatnonzero(route.to >= 0) for route in routes])
    dst = np.concatenate([route.to[route.to >= 0] for route in routes])
    sizes = [u for u in range(2, ranks + 1) if ranks % u == 0]
    group = min((u for u in sizes if (src // u == dst // u).all()), default=1)
    pairs = len(np.unique(src * ranks + dst))
    if pairs < len(src) or 2 * pairs < ranks * (group - 1):
        return routes
    width = max(route.blocks.shape[-1] for route in routes)
    blocks = np.full((ranks, group, width), -1)
    for route in routes:
        sender = np.flatnonzero(route.to >= 0)
        sent = widened(route.blocks[sender, 0], width)
        blocks[sender, route.to[sender] % group] = sent
    return [Route(routes[0].tensors, group, np.full(ranks, -1), blocks)]


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


def loops_of(turns: list[Turn]) -> Loops:
    """Neighbouring turns that can be turns of one loop, their permutations united."""
    loops: Loops = []
    for turn in turns:
        united = unite(loops[-1][0], turn) if loops else None
        if united is None:
            loops.append([turn])
            continue
        loops[-1] = [*loops[-1], turn]
        loops[-1][0] = Turn(loops[-1][0].attends, united)
    return [with_ends(loop) for loop in loops]


def unite(one: Turn, other: Turn) -> list[Route] | None:
    """The collectives of a turn with the senders and receivers of another; None if they differ."""
    if len(one.routes) != len(other.routes) or bool(one.attends) != bool(other.attends):
        return None
    united = []
    for a, b in zip(one.routes, other.routes, strict=True):
        to = np.maximum(a.to, b.to)
        ends = to[to >= 0]
        clash = ((a.to >= 0) & (a.to != to)) | ((b.to >= 0) & (b.to != to))
        same = everybody_gets_the_same(a) == everybody_gets_the_same(b)
        if (a.tensors, a.group) != (b.tensors, b.group) or clash.any() or not same:
            return None
        if not firsts(ends).all():
            return None
        united.append(Route(a.tensors, a.group, to, a.blocks))
    return united


def with_ends(loop: list[Turn]) -> list[Turn]:
    """Turns whose collectives have the senders, receivers and widths of the whole loop."""
    turns = [Turn(turn.attends, []) for turn in loop]
    for n, united in enumerate(loop[0].routes):
        width = max(turn.routes[n].blocks.shape[-1] for turn in loop)
        for done, turn in zip(turns, loop, strict=True):
            blocks = widened(turn.routes[n].blocks, width)
            done.routes.append(Route(united.tensors, united.group, united.to, blocks))
    return turns


def routes_of(loops: Loops) -> list[Route]:
    """Every collective, once per turn."""
    return [route for loop in loops for turn in loop for route in turn.routes]


def executed(loops: Loops) -> int:
    """How many messages these collectives carry, empty ones included."""
    return sum(map(messages, routes_of(loops)))


def messages(route: Route) -> int:
    """The messages of one collective, empty ones included."""
    return int((route.to >= 0).sum()) or len(route.blocks) * (route.group - 1)


def simpler(exact: Loops, schedule: Callable[[], Iterable[Node]], ranks: int) -> Loops:
    """Loops with the messages that the mask leaves, unless these are irregular and those of a
    full mask, made by `schedule`, make less work."""
    if len(exact) <= 4:
        return exact
    return min(exact, loops_of(turns_of(schedule(), ranks)), key=effort)


def effort(loops: Loops) -> int:
    """Rounds of messages, and twice the number of steps that have to be compiled."""
    rounds = sum(max(route.group - 1, 1) for route in routes_of(loops))
    return rounds + 2 * len(loops)
