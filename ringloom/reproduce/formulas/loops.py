"""The loop of each schedule, symbolically: what happens in round or step t, and for which t.

    busiest   (query, key) pairs of one head on the busiest rank of round t
    total     the same on all ranks together
    busy      ranks that attend in round t
    sent      per tensor, blocks that all ranks together send in step t
    finished  those of them that go home with all that is ever added to them, rounded
    received  per tensor, blocks that the busiest rank receives in the steps whose copies it holds
              at once: two steps of a loop (one block in use, one arriving), one of a collective

A block is c tokens with all heads. Each of these is a list of parts (expression, first t, last t);
the sums over t are taken in `formulas`, nothing is summed here. Uneven pieces are left out: c is
even where a layout has two pieces per rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sympy

Expr = Any  # of sympy, which has no types
P, c, d, h, g, U, R = sympy.symbols("P c d h g U R", positive=True, integer=True)
t = sympy.Symbol("t", integer=True, nonnegative=True)


class Part(NamedTuple):
    """An expression of t, from the first t to the last, both included."""

    each: Expr
    first: Expr
    last: Expr


Parts = tuple[Part, ...]
Sent = Mapping[str, Parts]


@dataclass(frozen=True)
class Loop:
    """One schedule under one mask; `shares` is what part of the heads a rank attends."""

    rounds: Parts
    busiest: Parts
    total: Parts
    busy: Parts
    forward: Sent
    backward: Sent
    received: Sent
    finished: Sent = field(default_factory=dict)
    shares: Expr = field(default=sympy.Integer(1))
    about: str = ""


def over(each: Expr, first: Expr, last: Expr) -> Part:
    """A part, its numbers as sympy's."""
    return Part(*map(sympy.sympify, (each, first, last)))


def rows(tokens: Expr) -> Expr:
    """Pairs on and below the diagonal of a square tile: row x sees x + 1 keys."""
    x = sympy.Symbol("x", integer=True, nonnegative=True)
    return sympy.summation(x + 1, (x, 0, tokens - 1))


def below(tokens: Expr) -> Expr:
    """Pairs below the diagonal: row x sees x keys (Striped Attention, section 3)."""
    return rows(tokens) - tokens


EVERY_ROUND = (over(1, 0, P - 1),)
ALL_BUSY = (over(P, 0, P - 1),)
ONE_SLOT_AHEAD = {"KV": (over(1, 0, 1),)}  # the block in use and the one that arrives
COPIES = (over(P, 0, P - 2),)  # every rank passes a block on, P - 1 times
RETURNS = (over(P, 1, P),)  # a sum one step behind, home after P hops
LAST_HOP = (over(P, P, P),)  # which brings the finished sum


def whole_ring(causal_pairs: tuple[Parts, Parts], about: str) -> Loop:
    """A ring in which every rank uses every block."""
    busiest, total = causal_pairs
    sent = {"KV": COPIES}
    return Loop(
        EVERY_ROUND,
        busiest,
        total,
        ALL_BUSY,
        sent,
        {**sent, "DKV": RETURNS},
        ONE_SLOT_AHEAD,
        finished={"DKV": LAST_HOP},
        about=about,
    )


def ring() -> Loop:
    """Contiguous pieces: after the diagonal round, rank r >= t attends a full block, others none.

    A KV block goes only as far as ranks need it: P - 1 - t messages in step t. Its gradient
    follows, and goes home once its last rank has added to it.
    """
    sent, home = {"KV": (over(P - 1 - t, 0, P - 2),)}, over(1, 1, P - 1)
    return Loop(
        rounds=EVERY_ROUND,
        busiest=(over(rows(c), 0, 0), over(c**2, 1, P - 1)),
        total=(over(P * rows(c), 0, 0), over((P - t) * c**2, 1, P - 1)),
        busy=(over(P - t, 0, P - 1),),
        forward=sent,
        backward={**sent, "DKV": (over(P - t, 1, P - 1), home)},
        received=ONE_SLOT_AHEAD,
        finished={"DKV": (home,)},
        about="contiguous pieces, causal",
    )


def striped() -> Loop:
    """Stripes: every round is a triangle, with its diagonal for ranks r >= t, else without."""
    busiest = (over(rows(c), 0, P - 1),)
    total = (over((P - t) * rows(c) + t * below(c), 0, P - 1),)
    return whole_ring((busiest, total), "stripes, causal")


HALF = c / 2
ZIGZAG_FIRST = 2 * rows(HALF) + HALF**2  # two triangles, and the late piece sees the early one
ZIGZAG_LATER = 2 * HALF**2  # in every later round two of four pieces, whichever rank


def zigzag() -> Loop:
    """A piece from the front and its mirror from the back: equal work in every round.

    Every rank uses one of the two, so both go all the way.
    """
    busiest = (over(ZIGZAG_FIRST, 0, 0), over(ZIGZAG_LATER, 1, P - 1))
    total = (over(P * ZIGZAG_FIRST, 0, 0), over(P * ZIGZAG_LATER, 1, P - 1))
    return whole_ring((busiest, total), "zigzag pieces, causal")


def burst() -> Loop:
    """Zigzag, but backward Q, DOUT and STATS travel in the place of KV, and DQ returns."""
    queries = dict.fromkeys(("Q", "DOUT", "STATS"), COPIES)
    around = zigzag()
    return Loop(
        around.rounds,
        around.busiest,
        around.total,
        around.busy,
        around.forward,
        {**queries, "DQ": RETURNS},
        around.received,
        finished={"DQ": LAST_HOP},
        about=around.about,
    )


def balanced() -> Loop:
    """Half of the ring's rounds: ranks r >= t fetch KV, the t others help with a query block.

    For even P nobody helps in the last round, t = P/2 (DistFlashAttn, section 3.2).
    """
    last, helped = sympy.floor(P / 2), sympy.ceiling(P / 2) - 1
    fetched, helping = (over(P - t, 1, last),), (over(t, 1, helped),)
    queries = dict.fromkeys(("Q", "DOUT", "STATS", "DQ"), helping)
    busy = (over(P, 0, 0), over(P - t, 1, last), over(t, 1, helped))
    return Loop(
        rounds=(over(1, 0, last),),
        busiest=(over(rows(c), 0, 0), over(c**2, 1, last)),
        total=(over(P * rows(c), 0, 0), over((P - t) * c**2, 1, last), over(t * c**2, 1, helped)),
        busy=busy,
        forward={"KV": fetched, "Q": helping, "OUT": helping},
        backward={"KV": fetched, "DKV": fetched, **queries},
        received={"KV": (over(1, 0, 1),), "Q": (over(1, 0, 1),)},
        about="contiguous pieces, causal; slots from 7 ranks on",
    )


def allgather() -> Loop:
    """One round of all blocks of the zigzag layout; message t of a rank goes t ranks on."""
    around, hops = zigzag(), (over(P, 1, P - 1),)
    return Loop(
        rounds=(over(1, 0, 0),),
        busiest=around.busiest,
        total=around.total,
        busy=(over(P, 0, 0),),
        forward={"KV": hops},
        backward={"KV": hops, "DKV": hops},
        received={"KV": (over(1, 1, P - 1),)},
        about="zigzag pieces, causal",
    )


def ulysses() -> Loop:
    """Every rank attends 1/P of the heads over all tokens and sends each other 1/P of a block.

    The backward pass starts from what the forward pass left.
    """
    exchanged = (over(P * (1 / P), 1, P - 1),)
    names = ("Q", "KV", "OUT"), ("DOUT", "DQ", "DKV")
    forward, backward = (dict.fromkeys(tensors, exchanged) for tensors in names)
    share = (over(1 / P, 1, P - 1),)
    return Loop(
        rounds=(over(1, 0, 0),),
        busiest=(over(t + 1, 0, P * c - 1),),
        total=(over(P * (t + 1), 0, P * c - 1),),
        busy=(over(P, 0, 0),),
        forward=forward,
        backward=backward,
        received={"Q": share, "KV": share},
        finished=dict.fromkeys(("OUT", "DQ", "DKV"), exchanged),
        shares=1 / P,
        about="causal; P divides the KV heads",
    )


def usp() -> Loop:
    """R groups of U ranks (P = U R): heads sharded in a group, a zigzag KV ring joins the groups.

    A group's KV block is U c tokens with 1/U of the heads on each of its ranks; its sum comes back
    to the group after R hops. The backward pass starts from what the forward pass left.
    """
    piece = U * c / 2
    first, later = 2 * rows(piece) + piece**2, 2 * piece**2
    exchanged = (over(U * R * (1 / U), 1, U - 1),)
    hops, returns = (over(U * R, 0, R - 2),), (over(U * R, 1, R),)
    return Loop(
        rounds=(over(1, 0, R - 1),),
        busiest=(over(first, 0, 0), over(later, 1, R - 1)),
        total=(over(U * R * first, 0, 0), over(U * R * later, 1, R - 1)),
        busy=(over(U * R, 0, R - 1),),
        forward={"Q": exchanged, "KV": exchanged + hops, "OUT": exchanged},
        backward={"DOUT": exchanged, "DQ": exchanged, "KV": hops, "DKV": returns + exchanged},
        received={"Q": (over(1 / U, 1, U - 1),), "KV": (over(1, 0, 1),)},
        finished=dict.fromkeys(("OUT", "DQ", "DKV"), exchanged),
        shares=1 / U,
        about="zigzag groups, causal; U divides the KV heads, R >= 3",
    )


LOOPS: dict[str, Callable[[], Loop]] = {
    "ring": ring,
    "striped": striped,
    "zigzag": zigzag,
    "balanced": balanced,
    "burst": burst,
    "allgather": allgather,
    "ulysses": ulysses,
    "usp": usp,
}
