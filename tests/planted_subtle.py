"""Faults that random inputs hide below 1e-2: few pairs of a ring whose rows have 4,096 keys."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ringloom as rl
from planting import RANKS, Attend, Fault, Subject, emitted, gradients, replaced, zeroed_head
from ringloom.planner.layouts import by_tokens
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.reference import dense

QUERIES, KEYS = 64, 4096
SEEN = 1e-2  # what a test of random inputs allows
ROWS, BLOCK = slice(3, 4), slice(0, 8)


def long_ring() -> Subject:
    """Our ring, on the last queries of a sequence of two documents."""
    mask = f"causal & documents:1000,{KEYS - 1000}"
    work = rl.Workload(QUERIES, KEYS, heads=2, kv_heads=1, head_dim=128, dtype="float32", mask=mask)
    return emitted("ring", "contiguous", work, "long")


def visited(source: int, change: Callable[..., None]) -> Any:
    """Plants a change where the last rank meets the keys of another."""

    def make(function: Any) -> Any:
        calls = [0]

        def spoiled(*args: Any) -> None:
            step, calls[0] = calls[0] % RANKS, calls[0] + 1
            here = dist.get_rank() == RANKS - 1 and step == (RANKS - 1 - source) % RANKS
            (change if here else lambda function, *args: function(*args))(function, *args)

        return spoiled

    return partial(replaced, {"merge_tiles": make})


def one_key(function: Any, *args: Any) -> None:
    """Merges everything, and a key of the block once more with one query."""
    function(*args)
    merge = function.__globals__["merge_attention"]
    merge(*args[:3], False, ROWS, slice(500, 501))


def small_block(function: Any, *args: Any) -> None:
    """Merges everything but some queries with some keys."""
    function(*args, slice(BLOCK.stop, None))
    function(*args, BLOCK, slice(BLOCK.stop, None))


SUBTLE = [
    Fault("a key twice in 4,096", ("attended twice",), visited(1, one_key)),
    Fault("a token of another document", ("document leak",), visited(0, one_key)),
    Fault("a lost block of small weights", ("block lost",), visited(2, small_block)),
    Fault("zeroed dq of a head", ("gradient lost",), gradients(0, zeroed_head)),
]


def random_test(attend: Attend, subject: Subject) -> bool:
    """Returns True if random inputs, and gradients of an average, show it on the last rank."""
    work, rank = subject.work, dist.get_rank()
    sides = by_tokens(work, RANKS, subject.layout)
    own, keys = sides.q.positions(rank), sides.kv.positions(rank)
    q, k, v, dout = draw(work, 3)
    dout = np.full_like(dout, 1 / dout.size)
    places = own, keys, keys
    local = [torch.tensor(x[:, :, at]) for x, at in zip((q, k, v), places, strict=True)]
    out = attend(*(x.requires_grad_() for x in local))
    results = out.detach(), *torch.autograd.grad(out, local, torch.full_like(out, 1 / dout.size))
    if rank < RANKS - 1:
        return False
    truths = dense.forward(work, q, k, v)[0], *dense.backward(work, q, k, v, dout)
    return any(
        np.abs(x.numpy() - y[:, :, at]).max() > SEEN
        for x, y, at in zip(results, truths, (own, *places), strict=True)
    )
