"""arrivals(registers, message, t)   computes the contents of a message on each receiver."""

from typing import assert_never

import numpy as np

from ringloom.codegen.checking.machine import Held, Registers
from ringloom.codegen.conditions import Flags, holds
from ringloom.codegen.ir import Exchange, Gather, Hop, Message, Reduce, Swap, SwapBack
from ringloom.planner.loops.form import Ints, Root
from ringloom.planner.masks.mask import SideName

Arrivals = tuple[Flags, Held]  # receivers, and contents [ranks, pieces, heads]


def arrivals(registers: Registers, message: Message, t: int) -> Arrivals:
    """Returns the receivers and contents of a message that starts in step t."""
    if isinstance(message.route, Hop):
        return _hop(registers, message, message.route, t)
    on, ranks = holds(message.on, [t], registers.coordinates)[0], len(registers.coordinates)
    if not on.any():
        return (on, np.zeros((ranks, 0, 0), np.intp))
    registers.fail_where(~on, "a rank does not take part in a collective message")
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
    contents = registers.read(message.source, t, on)
    if message.source.register.accumulates:
        registers.leaving[message.handle] = message.source.register, on
    else:
        empty = on & (contents < 0).all(axis=(1, 2))
        registers.fail_where(empty, "a rank sends a value before it arrives")
    return contents


def _hop(registers: Registers, message: Message, route: Hop, t: int) -> Arrivals:
    coordinates, mesh = registers.coordinates, registers.mesh
    ranks = np.arange(len(coordinates))
    ends = (coordinates[:, axis] + e.at(t, coordinates) for axis, e in enumerate(route.by))
    to = np.ravel_multi_index(tuple(ends), mesh, mode="wrap")
    tested = coordinates[to] if message.of_receiver else coordinates
    sends = holds(message.on, [t], tested)[0]
    registers.fail_where(sends & (to == ranks), "a rank sends to itself")
    count = np.bincount(to[sends], minlength=len(to))
    registers.fail_where(sends & (count[to] > 1), "two ranks send to the same rank")
    source = ranks.copy()
    source[to[sends]] = ranks[sends]
    return (count > 0, _sent(registers, message, t, sends)[source])


def _lines(registers: Registers, axis: int) -> Ints:
    """Returns, for each rank, the ranks on its line along an axis, in order: [ranks, n]."""
    cube = np.moveaxis(np.arange(len(registers.coordinates)).reshape(registers.mesh), axis, -1)
    lines = np.broadcast_to(cube[..., None, :], (*cube.shape, cube.shape[-1]))
    return np.asarray(np.moveaxis(lines, -2, axis).reshape(len(registers.coordinates), -1))


def _root(registers: Registers, message: Message, route: Root, t: int) -> Arrivals:
    lines, coordinates = _lines(registers, route.axis), registers.coordinates
    root = route.root.at(t, coordinates)
    registers.fail_where((root < 0) | (root >= lines.shape[1]), "a root is not a rank of its axis")
    source = np.take_along_axis(lines, root[:, None], axis=1)[:, 0]
    is_root, on = source == coordinates[:, -1], np.ones(len(coordinates), np.bool_)
    if message.source.register.accumulates:
        return (is_root, _sent(registers, message, t, on)[lines].sum(axis=1))
    return (on, _sent(registers, message, t, is_root)[source])


def _gathered(registers: Registers, message: Message, route: Gather | Swap, t: int) -> Held:
    if message.exchanged != message.source.register:
        registers.fail(f"{message.exchanged} is not the value that is exchanged")
    blocks = _sent(registers, message, t, np.ones(len(registers.coordinates), np.bool_))
    gathered = _concatenate(registers, route, blocks)
    if isinstance(route, Swap):
        gathered = gathered.repeat(route.copies, axis=2)
        slices, ranks = gathered.shape[2], registers.mesh[route.axis]
        if slices % ranks:
            registers.fail(f"{slices} slices of heads are swapped among {ranks} ranks")
        per_rank = slices // ranks
        heads = registers.coordinates[:, route.axis, None] * per_rank + np.arange(per_rank)
        gathered = np.take_along_axis(gathered, heads[:, None, :], axis=2)
    if route.sort:
        order = _order(registers, message.source.register.side, gathered)
        gathered = np.take_along_axis(gathered, order[:, :, None], axis=1)
    return gathered


def _concatenate(registers: Registers, route: Exchange, blocks: Held) -> Held:
    """Concatenates the pieces of all ranks along an axis."""
    lines = _lines(registers, route.axis)
    return blocks[lines].reshape(len(lines), -1, blocks.shape[2])


def _order(registers: Registers, side: SideName, blocks: Held) -> Ints:
    """Returns the permutation that sorts blocks [ranks, pieces, heads]: [ranks, pieces]."""
    chunk, first = registers.sides[side].chunk, blocks.max(axis=2)
    return np.argsort(np.where(first < 0, len(chunk), chunk[first]), axis=1, kind="stable")


def _reduced(registers: Registers, message: Message, route: Reduce | SwapBack, t: int) -> Held:
    """Returns to each rank the sums for the tokens that it owns."""
    lines, place = _lines(registers, route.axis), registers.coordinates[:, route.axis]
    weights = _sent(registers, message, t, np.ones(len(lines), np.bool_))
    if route.sort:
        if message.exchanged is None:
            registers.fail("sorted sums go back, but no exchange gives their order")
        gathered = _concatenate(registers, route, registers.table(message.exchanged))
        inverse = np.argsort(_order(registers, message.source.register.side, gathered), axis=1)
        weights = np.take_along_axis(weights, inverse[:, :, None], axis=1)
    parts = weights.reshape(len(lines), lines.shape[1], -1, weights.shape[2])
    received = parts[lines, place[:, None]]  # [ranks, members, pieces, heads]
    if isinstance(route, Reduce):
        return np.asarray(received.sum(axis=1))
    heads = np.moveaxis(received, 1, 2).reshape(len(lines), received.shape[2], -1, route.copies)
    return np.asarray(heads.sum(axis=3))
