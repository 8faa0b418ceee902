"""Ranks as threads of this process, which exchange messages in memory: for tests, and quick runs.

on_threads(ranks, body)   what `body(group)` returns on every rank, and their network
"""

import sys
import time
import traceback
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

import torch

from in_memory.distributed import joined
from in_memory.network import MemoryGroup, Network
from ringloom.runtimes.machine import RankError

T = TypeVar("T")


def on_threads(
    ranks: int, body: Callable[[MemoryGroup], T], timeout: float = 60.0
) -> tuple[list[T], Network]:
    """Results of `body(group)` of every rank, and the network with the log of their messages.

    The first error of any rank is raised as it is. RankError where ranks wait for each other, are
    not done after `timeout` seconds, or end without having waited for what they started.
    """
    network, errors = Network(ranks), list[BaseException]()
    results: list[Any] = [None] * ranks

    def live(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            with joined(network, rank) as group:
                results[rank] = body(group)
        except BaseException as error:
            errors.append(error)
            network.fail(f"rank {rank} failed: {error}")
        finally:
            network.end(rank)

    threads = [
        Thread(target=live, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    while (alive := [thread for thread in threads if thread.is_alive()]) and not errors:
        alive[0].join(0.05)
        if time.monotonic() > end:
            told = f"not done after {timeout:g} s" + "".join(map(where, alive))
            network.fail(f"not done after {timeout:g} s")
            raise RankError(told)
    if errors:
        raise errors[0]
    network.refuse_unwaited()
    return results, network


def where(thread: Thread) -> str:
    """Where a stalled rank is."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return ""
    return f"\n{thread.name}:\n" + "".join(traceback.format_stack(frame))
