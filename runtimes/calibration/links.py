"""Times messages between two ranks of this machine.

cpu    two processes exchange messages over gloo, like the ranks of a ring
cuda   one device copies to another, if there are two
"""

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.machine import RankError
from ringloom.runtimes.torch.launch import in_processes
from ringloom.runtimes.torch.rank import Parts

Rows = list[tuple[int, float]]
SIZES = tuple(4**n for n in range(6, 13))  # 4 KB to 16 MB
REPEATS = 15
TIMEOUT = 60.0  # seconds


def between_processes() -> Rows:
    """Returns (bytes, median seconds) of messages that two processes exchange; [] without gloo."""
    if not (dist.is_available() and dist.is_gloo_available()):
        return []
    try:
        (seconds,), _ = in_processes("", 2, (np.array(SIZES, np.float64),), _exchanges, TIMEOUT)
    except RankError:
        return []
    return list(zip(SIZES, seconds.tolist(), strict=True))


def _exchanges(_: ModuleType, group: Any, sizes: Sequence[Array]) -> Parts:
    """Returns the median seconds of a message of each size, on one rank."""
    torch.set_num_threads(1)
    return [np.array([_exchange(group.rank(), int(size)) for size in sizes[0]])]


def _exchange(rank: int, size: int) -> float:
    """Returns the median seconds of sending and receiving at the same time."""
    sent, received = (torch.ones(size // 4) for _ in range(2))

    def exchange() -> None:
        both = [
            dist.P2POp(dist.isend, sent, 1 - rank),
            dist.P2POp(dist.irecv, received, 1 - rank),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return _median(exchange, dist.barrier)


def between_devices() -> Rows:
    """Returns (bytes, median seconds) of copies between two CUDA devices; [] for a single one."""
    if torch.cuda.device_count() < 2:
        return []

    def ready() -> None:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    def copy() -> None:
        second.copy_(first)
        ready()

    rows = Rows()
    for size in (*SIZES, 4 * SIZES[-1]):
        first, second = (torch.ones(size // 4, device=f"cuda:{n}") for n in (0, 1))
        rows.append((size, _median(copy, ready)))
    return rows


def _median(run: Callable[[], None], ready: Callable[[], object]) -> float:
    """Returns the median seconds of a call, without the first; runs `ready` before each."""
    times = []
    for _ in range(REPEATS + 1):
        ready()
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))
