"""Replays emitted JAX programs in numpy, with their kernels: devices take turns, none compiles.

    out, dq, dk, dv = replay(pair, q, k, v, dout)

As `stand_ins` runs their schedules, and as strict.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ringloom.planner.plans import Plans
from ringloom.runtimes.emitted import RESULTS, SIDES, source_of
from stand_ins.jax_in_numpy import NAMES, array
from stand_ins.ranks import Ranks


def replay(plans: Any, *arrays: Any, sinks: Any = None) -> list[Any]:
    """Output and gradients by the program of plans, of whole arrays q, k, v, dout.

    Without dout, the output alone.
    """
    return replayed(source_of(Plans.of(plans), "jax"), plans.ranks, *arrays, sinks=sinks)


def replayed(source: str, ranks: int, *arrays: Any, sinks: Any = None) -> list[Any]:
    """Output and gradients by an emitted program; arrays in sequence order, in and out."""
    module = ModuleType("replayed")
    exec(compile(source, "<replayed>", "exec"), module.__dict__)
    vars(module).update(NAMES, lax=LAX, jax=JAX)
    shards = [
        [module.shard(array(x), rank, side=side) for rank in range(ranks)]
        for x, side in zip(arrays, SIDES, strict=False)
    ]

    def on_rank(rank: int) -> list[Any]:
        q, k, v, *douts = (array(parts[rank]) for parts in shards)
        more, given = ("", ()) if sinks is None else ("_with_sinks", (array(sinks),))
        out, saved = getattr(module, f"forward{more}")(q, k, v, *given, "sp")
        backward = getattr(module, f"backward{more}", None)
        return [out, *(x for dout in douts for x in backward("sp", saved, dout))]

    results = [*zip(*Ranks(ranks).run(on_rank), strict=True)]
    sided = zip(results, RESULTS["attention"], strict=False)
    whole = [np.asarray(module.unshard(parts, side=side)) for parts, side in sided]
    return [*whole, *(sum(parts) for parts in results[len(whole) :])]


# ---- what kernels and tables use beside it


def platform_dependent(*args: Any, default: Callable[..., Any], **_: Any) -> Any:
    return default(*args)


LAX = SimpleNamespace(
    **{**vars(NAMES["lax"]), "platform_dependent": platform_dependent},
    optimization_barrier=lambda x: x,
)
JAX = SimpleNamespace(
    **vars(NAMES["jax"]),
    eval_shape=lambda function, *args: function(*args),
    default_matmul_precision=lambda _: nullcontext(),
)
