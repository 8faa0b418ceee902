"""arrivals(registers, message, t)   computes what a message brings to each rank."""

from typing import assert_never

import numpy as np

from ringloom.codegen.checking.machine import Held, Registers
from ringloom.codegen.conditions import Flags, holds
from ringloom.codegen.ir import Exchange, Gather, Hop, Message, Reduce, Swap, SwapBack
from ringloom.planner.loops.form import Ints, Root
from ringloom.planner.masks.mask import SideName

Arrivals = tuple[Flags, Held]  # ranks that receive, and contents [ranks, pieces, heads]


def arrivals(registers: Registers, message: Message, t: int) -> Arrivals:
    """Returns what each rank receives from a message that starts in step t."""
    if isinstance(message.route, Hop):
        return _hop(registers, message, message.route, t)
    on, ranks = holds(message.on, [t], registers.where)[0], len(registers.where)
    if not on.any():
        return (on, np.zeros((ranks, 0, 0), np.intp))
    registers.fail_where(~on, "a rank takes no part in a message of all")
    match message.route:
        case Root():
            return _root(registers, message, message.route, t)
        case Gather() | Swap():
            return (on, _gathered(registers, message, message.route, t))
        case Reduce() | SwapBack():
            return (on, _reduced(registers, message, message.route, t))
        case _:
            assert_never(message.route)


def _sent(registers: Registers, message: Message, t: int, on: Flags) -> Held:
    """Returns the contents that each sending rank sends."""
    what = registers.read(message.source, t, on)
    if message.source.register.accumulates:
        registers.leaving[message.handle] = message.source.register, on
    else:
        empty = on & (what < 0).all(axis=(1, 2))
        registers.fail_where(empty, "a rank sends what has not come")
    return what


def _hop(registers: Registers, message: Message, route: Hop, t: int) -> Arrivals:
    where, mesh, ranks = registers.where, registers.mesh, np.arange(len(registers.where))
    ends = (where[:, axis] + e.at(t, where) for axis, e in enumerate(route.by))
    to = np.ravel_multi_index(tuple(ends), mesh, mode="wrap")
    asked = where[to] if message.of_receiver else where
    sends = holds(message.on, [t], asked)[0]
    registers.fail_where(sends & (to == ranks), "a rank sends to itself")
    count = np.bincount(to[sends], minlength=len(to))
    registers.fail_where(sends & (count[to] > 1), "two messages")
    source = ranks.copy()
    source[to[sends]] = ranks[sends]
    return (count > 0, _sent(registers, message, t, sends)[source])


def _lines(registers: Registers, axis: int) -> Ints:
    """Returns, for each rank, the ranks on its line along an axis, in order: [ranks, n]."""
    cube = np.moveaxis(np.arange(len(registers.where)).reshape(registers.mesh), axis, -1)
    every = np.broadcast_to(cube[..., None, :], (*cube.shape, cube.shape[-1]))
    return np.asarray(np.moveaxis(every, -2, axis).reshape(len(registers.where), -1))


def _root(registers: Registers, message: Message, route: Root, t: int) -> Arrivals:
    lines, where = _lines(registers, route.axis), registers.where
    root = route.root.at(t, where)
    registers.fail_where((root < 0) | (root >= lines.shape[1]), "a root lies outside")
    source = np.take_along_axis(lines, root[:, None], axis=1)[:, 0]
    is_root, every = source == where[:, -1], np.ones(len(where), np.bool_)
    if message.source.register.accumulates:
        return (is_root, _sent(registers, message, t, every)[lines].sum(axis=1))
    return (every, _sent(registers, message, t, is_root)[source])


def _gathered(registers: Registers, message: Message, route: Gather | Swap, t: int) -> Held:
    if message.exchanged != message.source.register:
        registers.fail(f"{message.exchanged} are not what is exchanged")
    blocks = _sent(registers, message, t, np.ones(len(registers.where), np.bool_))
    came = _joined(registers, route, blocks)
    if isinstance(route, Swap):
        came = came.repeat(route.copies, axis=2)
        many, rest = divmod(came.shape[2], registers.mesh[route.axis])
        if rest:
            registers.fail(f"{came.shape[2]} slices of heads are swapped")
        heads = registers.where[:, route.axis, None] * many + np.arange(many)
        came = np.take_along_axis(came, heads[:, None, :], axis=2)
    if route.sort:
        order = _order(registers, message.source.register.side, came)
        came = np.take_along_axis(came, order[:, :, None], axis=1)
    return came


def _joined(registers: Registers, route: Exchange, blocks: Held) -> Held:
    """Concatenates the pieces of all ranks along an axis."""
    lines = _lines(registers, route.axis)
    return blocks[lines].reshape(len(lines), -1, blocks.shape[2])


def _order(registers: Registers, side: SideName, blocks: Held) -> Ints:
    """Returns the sequence order of blocks [ranks, pieces, heads]: [ranks, pieces]."""
    chunk, first = registers.sides[side].chunk, blocks.max(axis=2)
    return np.argsort(np.where(first < 0, len(chunk), chunk[first]), axis=1, kind="stable")


def _reduced(registers: Registers, message: Message, route: Reduce | SwapBack, t: int) -> Held:
    """Sums for gathered tokens, in the order in which they lie, to the tokens' ranks."""
    lines, place = _lines(registers, route.axis), registers.where[:, route.axis]
    weights = _sent(registers, message, t, np.ones(len(lines), np.bool_))
    if route.sort:
        if message.exchanged is None:
            registers.fail("sums go back in the order of no exchange")
        came = _joined(registers, route, registers.table(message.exchanged))
        back = np.argsort(_order(registers, message.source.register.side, came), axis=1)
        weights = np.take_along_axis(weights, back[:, :, None], axis=1)
    parts = weights.reshape(len(lines), lines.shape[1], -1, weights.shape[2])
    for_us = parts[lines, place[:, None]]  # [ranks, members, pieces, heads]
    if isinstance(route, Reduce):
        return np.asarray(for_us.sum(axis=1))
    heads = np.moveaxis(for_us, 1, 2).reshape(len(lines), for_us.shape[2], -1, route.copies)
    return np.asarray(heads.sum(axis=3))
