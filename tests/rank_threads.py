"""Emitted torch programs on ranks that are threads and exchange in memory."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from dense_attention import assert_dense
from in_memory.distributed import installed
from in_memory.network import Network
from in_memory.threads import on_threads
from ringloom.planner.plans import Plans
from ringloom.runtimes import backends, emitted
from ringloom.runtimes.arrays import Array, draw, draw_sinks
from ringloom.runtimes.torch import launch, rank
from ringloom.runtimes.torch.rank import Body, Parts
from shards import in_order


def load(source: str) -> ModuleType:
    """An emitted program that takes groups in memory."""
    return installed(emitted.load(source))


def as_threads(source: str, ranks: int, arrays: Any, body: Body, timeout: float) -> list[Parts]:
    """One thread per rank: a `launch` of the torch backend."""
    program = load(source)
    return on_threads(ranks, lambda group: body(program, group, arrays), timeout)[0]


execute = partial(launch.execute, launch=as_threads, timeout=60.0)
run = partial(backends.run, backend=execute)


def in_threads(ranks: int, body: Callable[[Any], Any], seconds: float = 60.0) -> list[Any]:
    """Return the results of `body(group)` of all ranks; the first error of any is raised."""
    return on_threads(ranks, body, seconds)[0]


def results(
    program: ModuleType,
    plans: Plans,
    arrays: tuple[Array, ...],
    *tables: Any,
    sinks: Array | None = None,
) -> list[Array]:
    """out, dq, dk and dv, whole and in sequence order; and with sinks their gradient.

    Of a forward plan alone it is out.
    """
    sides = plans.first.partition

    def body(group: Any) -> list[Any]:
        at = [sides.side(side).positions(group.rank()) for side in ("q", "kv", "kv", "q")]
        local = [torch.from_numpy(x[:, :, n]) for x, n in zip(arrays, at, strict=False)]
        inputs = [x.requires_grad_(len(local) > 3) for x in local[:3]]
        more = {} if sinks is None else {"sinks": torch.tensor(sinks, requires_grad=True)}
        out = program.attention(*inputs, *tables, group=group, **more)
        if len(local) < 4:
            return [out]
        out.backward(local[3])
        return [out.detach(), *(x.grad for x in (*inputs, *more.values()))]

    results, wholes = [*zip(*in_threads(plans.ranks, body), strict=True)], []
    for parts, side in zip(results, ("q", "q", "kv", "kv"), strict=False):
        order = in_order(sides.side(side), plans.ranks)
        wholes.append(np.concatenate([x.numpy() for x in parts], 2)[:, :, np.argsort(order)])
    return [*wholes, *(sum(parts).numpy() for parts in results[4:])]


def assert_exact(program: ModuleType, plans: Plans, *tables: Any, seed: int = 0) -> None:
    arrays = draw(plans.workload, seed)[: 2 + len([*plans])]
    sinks = draw_sinks(plans.workload, seed)
    computed = results(program, plans, arrays, *tables, sinks=sinks)
    assert_dense(plans.workload, arrays, computed, sinks)


def trained(program: ModuleType, arrays: list[Any]) -> Network:
    """The network after both passes of a program on whole arrays q, k, v, dout, or after one."""
    return on_threads(program.RANKS, lambda group: rank.run_attention(program, group, arrays))[1]


def self_check(source: str, *words: str) -> None:
    """Do as `python FILE WORDS` on every rank, without processes; raises its errors."""
    program, last = load(source), ast.Module([ast.parse(source).body[-1]], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "0")  # as under torchrun
        patch.setattr("sys.argv", ["program.py", *words])
        names = vars(program) | {"__name__": "__main__"}
        on_threads(program.RANKS, lambda _: exec(compile(last, "program.py", "exec"), names))


KERNELS = ("attend", "attend_backward")


@contextmanager
def counted(program: ModuleType) -> Iterator[Counter[str]]:
    """Counts a program's kernel calls, over all ranks, inside of the block."""
    counts, lock = Counter[str](), Lock()
    plain = {name: getattr(program, name) for name in KERNELS}

    def noted(name: str, *args: Any, **kwargs: Any) -> Any:
        with lock:
            counts[name] += 1
        return plain[name](*args, **kwargs)

    for name in KERNELS:
        setattr(program, name, partial(noted, name))
    try:
        yield counts
    finally:
        for name in KERNELS:
            setattr(program, name, plain[name])
