"""The torch backend: a plan's emitted program on ranks, numpy arrays in, numpy arrays out.

in_processes   one process per rank on this machine, over gloo
in_group       the ranks of the process group that is initialised already, as under torchrun
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch.distributed as dist

from planner.errors import RingloomError
from planner.plans import Plans
from runtimes.arrays import Array
from runtimes.emitted import RESULTS, source_of
from runtimes.torch.processes import in_processes
from runtimes.torch.rank import BODIES, Body, Parts, load, to_numpy, to_torch

Launch = Callable[[str, int, tuple[Array, ...], Body, float], list[Parts]]
TIMEOUT = 300.0  # seconds


def execute(
    plans: Plans,
    function: str,
    *arrays: Array,
    sinks: Array | None = None,
    launch: Launch | None = None,
    timeout: float = TIMEOUT,
) -> list[Array]:
    """Runs plans: the backend `torch`, see `runtimes.backends`.

    `launch` says where ranks live: by default in the process group that is initialised, else in
    processes. RankError when a rank fails or nothing is done after `timeout` seconds.
    """
    body = partial(BODIES[function], sinks=sinks)
    program, parts = launched(plans, arrays, body, launch, timeout)
    return wholes(program, function, parts)


def launched(
    plans: Plans, arrays: tuple[Array, ...], body: Body, launch: Launch | None, timeout: float
) -> tuple[ModuleType, list[Parts]]:
    """Returns the program of plans, and what `body` returns on every rank of it."""
    source = source_of(plans, "torch")
    launch = launch or (in_group if dist.is_initialized() else in_processes)
    return load(source), launch(source, plans.ranks, arrays, body, timeout)


def wholes(program: ModuleType, function: str, parts: list[Parts]) -> list[Array]:
    """Results in sequence order from the shards of all ranks; the sinks' gradient is a sum."""
    results, sides = [*zip(*parts, strict=True)], RESULTS[function]
    sided = zip(results, sides, strict=False)  # without dout, out is all there is
    tokens = [to_numpy(program.unshard(map(to_torch, xs), side=side)) for xs, side in sided]
    return [*tokens, *(sum(xs) for xs in results[len(sides) :])]


def in_group(
    source: str, ranks: int, arrays: tuple[Array, ...], body: Body, timeout: float
) -> list[Parts]:
    """Runs the rank of this process; all have the same arrays and get the whole results."""
    if dist.get_world_size() != ranks:
        raise RingloomError(f"the plan is for {ranks} ranks, the group has {dist.get_world_size()}")
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, body(load(source), dist.group.WORLD, arrays))
    return parts
