"""The passes of a program on one rank: what stands for its kernels, and how they are called."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ringloom.planner.masks.regions import FAR, Region
from stand_ins import jax_in_numpy, torch_in_numpy
from stand_ins.attention import Array, Pairs, attend, attend_backward
from stand_ins.case import SIDE, Case
from stand_ins.jax_in_numpy import AXIS, array
from stand_ins.ranks import Stuck
from stand_ins.torch_in_numpy import NARROW, WIDE, WORLD, tensor

NOWHERE = 2**50  # the position of padding, in no box
Scope = dict[str, Any]


def plain(*arrays: Any) -> Any:
    """Arrays of numpy, in float64."""
    return [np.asarray(x, np.float64) for x in arrays]


@lru_cache(maxsize=64)
def banded(rows: int, cols: int, band: Any) -> Pairs:
    """The pairs of a kernel call: True is causal, False whole, and (lo, hi) a band."""
    if band is True and rows > cols:
        raise Stuck(f"{rows} queries of {cols} keys, of which the first ones see none")
    low, high = band if isinstance(band, tuple) else (-FAR, cols - rows if band else FAR)
    region = Region.of([(-FAR, FAR, -FAR, FAR, low, high)])
    return Pairs(region, np.arange(rows), np.arange(cols))


def widths(case: Case) -> Scope:
    """The constants of a program for the widths of queries and values."""
    return {"HEAD_DIM": case.inputs["q"].shape[3], "V_HEAD_DIM": case.inputs["v"].shape[3]}


# ---- torch


def torch_names(case: Case, _: str) -> Scope:
    """torch, and what stands for the kernels of a program."""

    def alike(*_: Any) -> None:
        """All ranks run the same case."""

    def forward(q: Any, k: Any, v: Any, band: Any) -> Any:
        q, k, v = plain(q, k, v)
        out, lse = attend(q, k, v, banded(q.shape[2], k.shape[2], band))
        if np.isneginf(lse).any():
            raise Stuck("a kernel call of queries that see no keys")
        return tensor(out).to(NARROW), tensor(lse).to(WIDE)

    def backward(dout: Any, q: Any, out: Any, lse: Any, k: Any, v: Any, band: Any) -> Any:
        if lse.dtype != WIDE:
            raise Stuck(f"a log-sum-exp of {lse.dtype}")
        dout, q, out, lse, k, v = plain(dout, q, out, lse, k, v)
        delta = (dout * out).sum(3, keepdims=True)
        return [
            *map(
                tensor,
                attend_backward(q, dout, delta, lse, k, v, banded(q.shape[2], k.shape[2], band)),
            )
        ]

    own = {
        "attend": forward,
        "attend_backward": backward,
        "counts_from_end": lambda *_: True,
        "takes_windows": lambda _: True,  # as on GPUs
        "check_agreement": alike,
        "operator": lambda _: lambda function: function,
    }
    return {**torch_in_numpy.NAMES, **widths(case), **own}


def operator(run: Callable[..., list[Any]], *given: Any) -> list[Any]:
    """The results of an operator; Stuck where it changes, or gives back, what it was given."""
    before = [np.copy(x) for x in given]
    results = [*run(*given)]
    if not all(np.array_equal(x, y, equal_nan=True) for x, y in zip(given, before, strict=True)):
        raise Stuck("an operator changes what it was given")
    if len({id(storage(x)) for x in (*given, *results)}) < len(given) + len(results):
        raise Stuck("two results, or a result and an input, share memory")
    return results


def storage(x: Any) -> Any:
    """The array whose memory another one has."""
    return x if x.base is None else storage(x.base)


def run_torch(names: Scope, case: Case, rank: int) -> list[Any]:
    """Output and gradients of a rank."""
    order: Any = "CF"[rank % 2]  # some users have tensors that are not contiguous
    parts = inputs_of(names, case, rank)
    q, k, v, *douts = (tensor(np.asarray(x, order=order)) for x in parts)
    given = [q, k, v] if case.sinks is None else [q, k, v, tensor(case.sinks)]
    results = operator(lambda *x: names["forward"](*x, WORLD, "", "", -1), *given)
    saved = [*given, *results]
    backward = partial(operator, lambda dout, *x: names["backward"](dout, [*x], WORLD))
    grads = [x for dout in douts for x in backward(dout, *saved)]
    if torch_in_numpy.under_way():
        raise Stuck(f"rank {rank} does not wait for what it started")
    return [results[0], *grads]


# ---- JAX


def jax_names(case: Case, text: str) -> Scope:
    """jax, and what stands for the kernels of a program."""
    ahead = case.inputs["k"].shape[2] - case.inputs["q"].shape[2]
    stats = "q, dout, lse, delta = queries" in text

    def forward(pairs: Pairs, *arrays: Any) -> Any:
        q, k, v = plain(*arrays)
        return tuple(array(x.astype(WIDE)) for x in attend(q, k, v, pairs))

    def backward(pairs: Pairs, *arrays: Any, stats: bool = False) -> Any:
        q, dout, out, lse, k, v = plain(*arrays)
        lse, delta = (out, lse) if stats else (lse, (dout * out).sum(3, keepdims=True))
        grads = attend_backward(q, dout, delta, lse, k, v, pairs)
        return tuple(array(x.astype(WIDE)) for x in grads)

    def masked(rows: Any, cols: Any, seen: object) -> Pairs:
        if seen is not case:
            raise Stuck("a rectangle under another mask")
        i, j = (np.asarray(x, np.int64) for x in (rows, cols))
        return Pairs(case.region, np.where(i < 0, NOWHERE, i + ahead), np.where(j < 0, NOWHERE, j))

    def on_platform(way: int, causal: bool, q: Any, *arrays: Any) -> Any:
        rows, cols = q.shape[2], arrays[-1].shape[2]
        if causal and rows != cols:
            raise Stuck(f"{rows} queries and {cols} keys, of which kernels align other corners")
        pairs = banded(rows, cols, causal)
        return (forward, backward)[way](pairs, q, *arrays)

    def attend_masked(q: Any, kv: Any, *where: Any) -> Any:
        return forward(masked(*where), q, *kv)

    def attend_masked_backward(queries: Any, kv: Any, *where: Any) -> Any:
        dq, dk, dv = backward(masked(*where), *queries, *kv, stats=stats)
        return dq, (dk, dv)

    own = on_platform, attend_masked, attend_masked_backward
    named = {function.__name__: function for function in own}
    return {
        **jax_in_numpy.NAMES,
        **widths(case),
        **named,
        "accum_dtype": lambda x: WIDE,
        "allowed": case,
    }


def run_jax(names: Scope, case: Case, rank: int) -> list[Any]:
    """Output and gradients of a rank, without the rows of padding."""
    q, k, v, *douts = (array(x) for x in inputs_of(names, case, rank))
    more, given = ("", ()) if case.sinks is None else ("_with_sinks", (array(case.sinks),))
    out, saved = names[f"forward{more}"](q, k, v, *given, AXIS)
    backward = partial(names.get(f"backward{more}", tuple), AXIS, saved)
    grads = (x for dout in douts for x in backward(dout))
    real = {SIDE[name]: places(names, case, name, rank) >= 0 for name in case.inputs}
    sides = dict(enumerate(SIDE[name] for name in ("out", "dq", "dk", "dv")))
    return [
        x[:, :, real[sides[n]]] if n in sides and np.ndim(x) == 4 else x
        for n, x in enumerate((out, *grads))
    ]


def places(names: Scope, case: Case, name: str, rank: int) -> Array:
    """The positions of the tokens in a rank's shard of an input; -1 is padding."""
    where = names["positions"]
    if SIDE[name] == "kv":
        where = names.get("kv_positions", where)
    return np.asarray(where(rank, case.length(name)))


def inputs_of(names: Scope, case: Case, rank: int) -> list[Array]:
    """The inputs of a rank in the order of its shard, padded with zeros where that is."""
    parts = list[Array]()
    for name in case.inputs:
        part, own = case.part(name, rank), places(names, case, name, rank)
        if not np.array_equal(own[own >= 0], case.at[SIDE[name]][rank]):
            raise Stuck(f"rank {rank} has other tokens of {name}")
        parts.append(np.zeros((*part.shape[:2], len(own), part.shape[3])))
        parts[-1][:, :, own >= 0] = part
    return parts
