"""jax_passing   what only passes through devices: messages that are never put into slots.

Around a ring a device sends what came in the turn before, or what it added to that, and meets
nothing else of that tensor. Then the message itself is what rectangles read or add to: nothing is
cut out of a store or put into one before the blocks are through. All of this is written into
emitted programs word for word.
"""

from typing import NamedTuple

import numpy as np

from codegen.jax_routes import Turn, arriving
from codegen.rows import Flags, Ints


class Passing(NamedTuple):
    """The blocks [ranks, n] of a message: those that it begins with, those that rectangles of each
    turn can meet, and those that are in it after the last turn."""

    begin: Ints
    met: list[Ints]
    after: Ints


def passing_copies(
    tensor: str,
    loop: list[Turn],
    attended: list[Ints],
    before: Ints | None,
    read_later: Flags,
) -> Passing | None:
    """How copies pass through the turns of a loop, in which each device attends some of them
    [ranks, n]; None if they do not. before: the message under way, if there is one; read_later:
    which blocks are read after the loop, [ranks, blocks + 1]."""
    if not any(tensor in route.tensors for route in loop[0].routes):
        if before is None or not any((blocks >= 0).any() for blocks in attended):
            return None
        stays = all(within(blocks, before) for blocks in attended)
        return Passing(before, [before] * len(loop), before) if stays else None
    ends = sent_and_came(tensor, loop)
    if ends is None:
        return None
    sent, came = ends
    begin = filled(sent[0], attended[0]) if before is None else before
    met = [begin, *came[:-1]]
    if begin.shape != sent[0].shape:
        return None
    lost = came[:-1] if before is None else met  # what is in slots stays there
    rank = np.arange(len(begin))[:, None]
    if any((read_later[rank, blocks] & (blocks >= 0)).any() for blocks in lost):
        return None
    onward = all(((a == b) | (a < 0)).all() for a, b in zip(sent, met, strict=True))
    passes = onward and all(map(within, attended, met))
    return Passing(begin, met, came[-1]) if passes else None


def passing_sums(
    tensor: str,
    loop: list[Turn],
    attended: list[Ints],
    before: Ints | None,
    held: Flags,
) -> Passing | None:
    """The same for running sums: rectangles add to an empty message, what comes is added to it, and
    all of that is sent on. held: the sums that a device has in slots, [ranks, blocks + 1]."""
    ends = None if tensor == "OUT" else sent_and_came(tensor, loop)
    if ends is None:
        return None
    sent, came = ends
    onward = came[:-1] if before is None else [before, *came[:-1]]
    rank = np.arange(len(came[0]))[:, None]
    if any((held[rank, blocks] & (blocks >= 0)).any() for blocks in onward):
        return None
    passes = all(map(np.array_equal, sent[len(sent) - len(onward) :], onward))
    passes = passes and all(map(within, attended, came))
    return Passing(sent[0], came, came[-1]) if passes else None


def sent_and_came(
    tensor: str,
    loop: list[Turn],
) -> tuple[list[Ints], list[Ints]] | None:
    """The blocks [ranks, n] that each turn sends and brings, if one permutation carries them."""
    some = [n for n, route in enumerate(loop[0].routes) if tensor in route.tensors]
    if len(some) != 1 or loop[0].routes[some[0]].group:
        return None
    routes = [turn.routes[some[0]] for turn in loop]
    came = [arriving(route)[:, 0] for route in routes]
    return [route.blocks[:, 0] for route in routes], came


def filled(sent: Ints, wanted: Ints) -> Ints:
    """Blocks that ranks send, [ranks, n], and where these are none others that they want."""
    found = sent.copy()
    for message, blocks in zip(found, wanted, strict=True):
        more = np.setdiff1d(blocks, [-1, *message])
        free = np.flatnonzero(message < 0)[: len(more)]
        message[free] = more[: len(free)]
    return found


def places(blocks: Ints, message: Ints, nowhere: int) -> Ints:
    """Where blocks [ranks, n] are in a message [ranks, m]."""
    same = blocks[:, :, None] == message[:, None, :]
    there = same.any(axis=2) & (blocks >= 0)
    return np.where(there, same.argmax(axis=2), nowhere)


def within(blocks: Ints, message: Ints) -> bool:
    """Whether all blocks [ranks, n] are in a message [ranks, m]."""
    return bool(((blocks < 0) | (places(blocks, message, -1) >= 0)).all())
