"""Times messages between two ranks of this machine.

cpu    two processes exchange messages over gloo, like the ranks of a ring
cuda   one device copies to another, if the machine has at least two
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
    """Returns (bytes, median seconds) of messages between two processes; [] without gloo."""
    if not (dist.is_available() and dist.is_gloo_available()):
        return []
    try:
        (seconds,), _ = in_processes("", 2, (np.array(SIZES, np.float64),), _time_sizes, TIMEOUT)
    except RankError:
        return []
    return list(zip(SIZES, seconds.tolist(), strict=True))


def _time_sizes(_: ModuleType, group: Any, sizes: Sequence[Array]) -> Parts:
    """Returns the median seconds of a message of each size, on one rank."""
    torch.set_num_threads(1)
    return [np.array([_time_exchange(group.rank(), int(size)) for size in sizes[0]])]


def _time_exchange(rank: int, size: int) -> float:
    """Returns the median seconds of a simultaneous send and receive of `size` bytes each."""
    sent, received = (torch.ones(size // 4) for _ in range(2))

    def exchange() -> None:
        ops = [
            dist.P2POp(dist.isend, sent, 1 - rank),
            dist.P2POp(dist.irecv, received, 1 - rank),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return _median(exchange, dist.barrier)


def between_devices() -> Rows:
    """Returns (bytes, median seconds) of copies between CUDA devices; [] if there is only one."""
    if torch.cuda.device_count() < 2:
        return []

    def synchronize() -> None:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    def copy() -> None:
        second.copy_(first)
        synchronize()

    rows = Rows()
    for size in (*SIZES, 4 * SIZES[-1]):
        first, second = (torch.ones(size // 4, device=f"cuda:{n}") for n in (0, 1))
        rows.append((size, _median(copy, synchronize)))
    return rows


def _median(run: Callable[[], None], synchronize: Callable[[], object]) -> float:
    """Returns the median seconds of a call after the first; synchronises before each call."""
    times = []
    for _ in range(REPEATS + 1):
        synchronize()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))
