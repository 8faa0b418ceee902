"""run(plan, q, k, v)   emit a plan's torch program and run it: numpy arrays in, numpy arrays out.

processes   one process per rank on this machine, over gloo (the default)
threads     one thread per rank in this process, exchanging in memory: for tests
group       the ranks of the process group that is initialised already, as under torchrun
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch.distributed as dist

from codegen import emit
from planner.errors import PlanError
from planner.ir import Plan
from planner.planning import Pair
from runtimes import dense
from runtimes.arrays import Array, check_arrays, dtype_of, wide
from runtimes.pairs import completed, passes
from runtimes.torch.memory_dist import installed
from runtimes.torch.processes import in_processes
from runtimes.torch.rank import Body, Parts, ahead, attend, back, load, positions
from runtimes.torch.threads import on_threads

Launcher = Callable[..., list[Parts]]
TIMEOUT = 300.0  # seconds


def run(
    plan: Plan | Pair,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    *,
    launcher: str = "",
    timeout: float = TIMEOUT,
) -> Array | tuple[Array, ...]:
    """Run a plan's torch program on arrays in sequence order: out, or with `dout` also dq, dk, dv.

    Arguments and errors as in `runtimes.oracle.run`. `launcher` is "processes", "threads" or
    "group"; by default an initialised process group is used, else processes. RankError when a rank
    fails or nothing is done after `timeout` seconds.
    """
    plans = passes(plan)
    program = completed(plans, dout is not None)
    launch = partial(launched, program, launcher=launcher, timeout=timeout)
    if dout is None:
        return launch([q, k, v], attend, ["q"])[0]
    if "forward" in plans:
        return tuple(launch([q, k, v, dout], attend, ["q", "q", "kv", "kv"]))
    work = plans["backward"].workload
    check_arrays(work, q=q, k=k, v=v, dout=dout)
    out, lse = (x.astype(wide(work.dtype)) for x in dense.forward(work, q, k, v))
    gradients = launch([q, k, v, dout, out, lse[..., None]], back, ["q", "kv", "kv"])
    return out.astype(dtype_of(work.dtype)), *gradients


def forward(
    plan: Plan,
    q: Array,
    k: Array,
    v: Array,
    *,
    launcher: str = "",
    timeout: float = TIMEOUT,
) -> tuple[Array, Array]:
    """Run a forward plan: out in the workload's dtype, and lse [batch, heads, seq], not rounded."""
    if plan.pass_ != "forward":
        raise PlanError(f"{plan.name} is a {plan.pass_} plan, not a forward plan")
    program = completed(passes(plan), False)
    out, lse = launched(program, [q, k, v], ahead, ["q", "q"], launcher=launcher, timeout=timeout)
    return out, lse[..., 0]


def launched(
    plan: Plan | Pair,
    arrays: list[Array],
    body: Body,
    sides: list[str],
    *,
    launcher: str,
    timeout: float,
) -> list[Array]:
    """Whole results of `body`, which lie on these sides, from every rank's parts."""
    source, parts = parts_of(plan, arrays, body, launcher, timeout)
    columns = zip(*parts, strict=True)
    return [whole(load(source), side, xs) for side, xs in zip(sides, columns, strict=True)]


def parts_of(
    plan: Plan | Pair, arrays: list[Array], body: Body, launcher: str, timeout: float
) -> tuple[str, list[Parts]]:
    """The program of a plan, and what `body` returns on every rank of it."""
    one = plan if isinstance(plan, Plan) else plan[0]
    check_arrays(one.workload, **dict(zip(("q", "k", "v", "dout"), arrays, strict=False)))
    source = emit(plan, "torch")
    return source, launch(source, one.ranks, arrays, body, launcher, timeout)


def launch(
    source: str, ranks: int, arrays: list[Array], body: Body, launcher: str, timeout: float
) -> list[Parts]:
    """What `body` returns on every rank."""
    launcher = launcher or ("group" if dist.is_initialized() else "processes")
    if launcher not in LAUNCHERS:
        raise PlanError(f"unknown launcher {launcher!r}: choose one of {', '.join(LAUNCHERS)}")
    return LAUNCHERS[launcher](source, ranks, arrays, timeout, body=body)


def whole(program: ModuleType, side: str, parts: tuple[Array, ...]) -> Array:
    """A result in sequence order from the shards of all ranks."""
    at = [positions(program, rank, side) for rank in range(len(parts))]
    batch, heads, _, width = parts[0].shape
    result = np.empty((batch, heads, sum(map(len, at)), width), parts[0].dtype)
    for part, where in zip(parts, at, strict=True):
        result[:, :, where] = part
    return result


def in_threads(
    source: str, ranks: int, arrays: list[Array], timeout: float, *, body: Body = attend
) -> list[Parts]:
    """One thread per rank."""
    program = installed(load(source))

    def on_rank(group: Any) -> Parts:
        return body(program, group, arrays)

    return on_threads(ranks, on_rank, timeout)[0]


def in_group(
    source: str, ranks: int, arrays: list[Array], timeout: float, *, body: Body = attend
) -> list[Parts]:
    """Every rank of the world has the same arrays and gets the whole results."""
    if dist.get_world_size() != ranks:
        raise PlanError(f"the plan is for {ranks} ranks, the group has {dist.get_world_size()}")
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, body(load(source), dist.group.WORLD, arrays))
    return parts


LAUNCHERS: dict[str, Launcher] = {
    "processes": in_processes,
    "threads": in_threads,
    "group": in_group,
}
