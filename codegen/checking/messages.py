"""arrivals(registers, message, t)   what a message brings to each rank, by its route."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from codegen.checking.machine import Held, Registers
from codegen.conditions import Flags, holds
from codegen.ir import Gather, Hop, Message, Reduce, Swap, SwapBack
from planner.loops.form import Ints, Root
from planner.masks.mask import SideName


@dataclass(frozen=True, eq=False)
class Arrival:
    """Blocks, or weights, that a message brings [ranks, pieces, heads], and to which ranks.

    `sent`: which ranks give theirs.
    """

    on: Flags
    what: Held
    sent: Flags


def arrivals(registers: Registers, message: Message, t: int) -> Arrival:
    """Returns what comes to each rank from a message that starts in step t."""
    match message.route:
        case Hop():
            return _hop(registers, message, message.route, t)
        case Root():
            return _root(registers, message, message.route, t)
        case Gather() | Swap():
            return _gathered(registers, message, message.route, t)
        case Reduce() | SwapBack():
            return _reduced(registers, message, message.route, t)
        case _:
            assert_never(message.route)


def _content(registers: Registers, message: Message, t: int, on: Flags) -> Arrival:
    """The content of the message of each rank, if it sends one."""
    if message.source.register.accumulates:
        return Arrival(on, registers.take(message.source, t, on), on)
    blocks = registers.read(message.source, t, on)
    empty = on & (blocks < 0).all(axis=(1, 2))
    registers.fail_where(empty, "a rank sends what has not come")
    return Arrival(on, blocks, on)


def _hop(registers: Registers, message: Message, route: Hop, t: int) -> Arrival:
    where, mesh = registers.where, registers.mesh
    to = np.ravel_multi_index(
        tuple(where[:, axis] + e.at(t, where) for axis, e in enumerate(route.by)),
        mesh,
        mode="wrap",
    )
    ranks = np.arange(len(where))
    asked = where[to] if message.of_receiver else where
    sends = holds(message.on, [t], asked)[0]
    registers.fail_where(sends & (to == ranks), "a rank sends to itself")
    comes, source = np.zeros(len(where), np.bool_), ranks.copy()
    registers.fail_where(
        sends & (np.bincount(to[sends], minlength=len(to))[to] > 1), "two messages"
    )
    comes[to[sends]], source[to[sends]] = True, ranks[sends]
    content = _content(registers, message, t, sends)
    return Arrival(comes, content.what[source], sends)


def _members(registers: Registers, axis: int) -> Ints:
    """The ranks along an axis with each rank, in order: [ranks, n]."""
    cube = np.arange(len(registers.where)).reshape(registers.mesh)
    lines = np.moveaxis(cube, axis, -1)
    size = lines.shape[-1]
    every = np.broadcast_to(lines[..., None, :], (*lines.shape, size))
    return np.asarray(np.moveaxis(every, -2, axis).reshape(len(registers.where), size))


def _runs(registers: Registers, message: Message, t: int) -> bool:
    """True if a message of all ranks along an axis is sent in a step."""
    on = holds(message.on, [t], registers.where)[0]
    if on.any() and not on.all():
        registers.fail("some ranks take no part in a message of all", int(on.argmin()))
    return bool(on.all())


def _nothing(registers: Registers) -> Arrival:
    none = np.zeros(len(registers.where), np.bool_)
    return Arrival(none, np.zeros((0, 0, 0), np.intp), none)


def _root(registers: Registers, message: Message, route: Root, t: int) -> Arrival:
    if not _runs(registers, message, t):
        return _nothing(registers)
    members, where = _members(registers, route.axis), registers.where
    root = route.root.at(t, where)
    inside = (root >= 0) & (root < members.shape[1])
    registers.fail_where(~inside, "the root of a message lies outside")
    source = np.take_along_axis(members, root[:, None], axis=1)[:, 0]
    is_root, every = source == where[:, -1], np.ones(len(where), np.bool_)
    if not message.source.register.accumulates:
        return Arrival(every, _content(registers, message, t, is_root).what[source], is_root)
    weights = registers.take(message.source, t, every)
    return Arrival(is_root, weights[members].sum(axis=1), every)


def _gathered(registers: Registers, message: Message, route: Gather | Swap, t: int) -> Arrival:
    if not _runs(registers, message, t):
        return _nothing(registers)
    members, every = _members(registers, route.axis), np.ones(len(registers.where), np.bool_)
    register = message.source.register
    blocks = _content(registers, message, t, every).what  # [ranks, pieces, heads]
    came = blocks[members].reshape(len(members), -1, blocks.shape[2])
    if isinstance(route, Swap):
        share = _share(registers, route, blocks.shape[2])
        came = np.take_along_axis(came, share[:, None, :], axis=2)
    if route.sort:
        order = _order(registers, register.side, came)
        came = np.take_along_axis(came, order[:, :, None], axis=1)
    return Arrival(every, came, every)


def _share(registers: Registers, route: Swap, heads: int) -> Ints:
    """The slices of heads, of so many, that each rank gets: [ranks, heads / n]."""
    size = registers.mesh[route.axis]
    if heads % size:
        registers.fail(f"{heads} slices of heads are swapped among {size} ranks")
    many = heads // size
    return np.asarray(registers.where[:, route.axis, None] * many + np.arange(many))


def _order(registers: Registers, side: SideName, blocks: Ints) -> Ints:
    """Places of blocks [ranks, pieces, heads] in the order of the sequence: [ranks, pieces]."""
    chunk, first = registers.sides[side].chunk, blocks.max(axis=2)
    return np.argsort(np.where(first < 0, len(chunk), chunk[first]), axis=1, kind="stable")


def _reduced(registers: Registers, message: Message, route: Reduce | SwapBack, t: int) -> Arrival:
    """Sums for gathered tokens, in the order in which they lie, to the tokens' ranks."""
    if not _runs(registers, message, t):
        return _nothing(registers)
    register, members = message.source.register, _members(registers, route.axis)
    every = np.ones(len(members), np.bool_)
    weights = registers.take(message.source, t, every)
    ranks, pieces, heads = weights.shape
    if pieces % members.shape[1]:
        registers.fail(f"{pieces} pieces are divided among {members.shape[1]} ranks")
    if route.sort:
        if message.exchanged is None:
            registers.fail("sums go back in the order of no exchange")
        sent = registers.blocks(message.exchanged)
        gathered = sent[members].reshape(len(members), -1, sent.shape[2])
        back = np.argsort(_order(registers, register.side, gathered), axis=1)
        weights = np.take_along_axis(weights, back[:, :, None], axis=1)
    parts = weights.reshape(ranks, members.shape[1], -1, heads)
    place = registers.where[:, route.axis]
    for_us = parts[members, place[:, None]]  # [ranks, members, pieces, heads]
    if isinstance(route, Reduce):
        return Arrival(every, for_us.sum(axis=1), every)
    came = np.moveaxis(for_us, 1, 2).reshape(ranks, for_us.shape[2], -1)
    return Arrival(every, came, every)


def ordered(chunks: Ints) -> Ints:
    """Sets of positions [n, w] in the order of the sequence, -1 behind them."""
    key = np.where(chunks < 0, np.iinfo(np.int32).max, chunks)
    return np.take_along_axis(chunks, np.argsort(key, axis=1, kind="stable"), axis=1)
