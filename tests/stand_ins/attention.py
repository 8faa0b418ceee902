"""Attention that is quick to compute: of sums over keys, and of sums over queries.

The score of a query and a key is a sum of a number of each, so that weights are products, and sums
over a run of keys are differences of two running sums. A query sees the keys of a region's pieces:
an attention of n queries and n keys takes n steps for each piece, where a real one takes n * n.
All arrays are [batch, heads, tokens, width]. What goes in or out has the meaning that it has in
attention: a part is merged with others by its log-sum-exp, and gradients are sums over parts.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.masks.regions import Ints, Region

Array = NDArray[Any]


class Pairs:
    """The pairs that a region allows of some positions of queries and of keys."""

    def __init__(self, region: Region, q: Ints, kv: Ints) -> None:
        i0, i1, j0, j1, low, high = region.pieces.T
        turned = np.stack([j0, j1, i0, i1, -high, -low], 1)
        self.keys, self.queries = Runs(region.pieces, q, kv), Runs(turned, kv, q)


class Runs:
    """For tokens of one side, the runs of those on the other side that they meet."""

    def __init__(self, pieces: Ints, own: Ints, others: Ints) -> None:
        order, self.order = (np.argsort(x, kind="stable") for x in (own, others))
        own, others, self.places = own[order], others[self.order], np.argsort(order)
        self.tokens, self.runs = len(own), list[tuple[slice, Ints, Ints]]()
        first, last = np.searchsorted(own, pieces[:, 0]), np.searchsorted(own, pieces[:, 1])
        for n in np.flatnonzero(first < last):
            at, (_, _, j0, j1, low, high) = own[first[n] : last[n]], pieces[n]
            start = np.searchsorted(others, np.maximum(at + low, j0))
            stop = np.searchsorted(others, np.minimum(at + high + 1, j1))
            self.runs.append((slice(first[n], last[n]), start, np.maximum(start, stop)))

    def sums(self, x: Array) -> Array:
        """The sums of x, of the other side, over what each token meets."""
        total = np.zeros((*x.shape[:2], self.tokens, x.shape[3]))
        running = np.zeros((*x.shape[:2], x.shape[2] + 1, x.shape[3]))
        np.cumsum(x.take(self.order, axis=2), axis=2, out=running[:, :, 1:])
        for rows, start, stop in self.runs:
            total[:, :, rows] += running.take(stop, axis=2) - running.take(start, axis=2)
        return total.take(self.places, axis=2)


def attend(q: Array, k: Array, v: Array, pairs: Pairs) -> tuple[Array, Array]:
    """Output and log-sum-exp."""
    groups = q.shape[1] // k.shape[1]
    weights = np.exp(k[..., :1])
    sums = pairs.keys.sums(np.concatenate([weights, weights * v], axis=3)).repeat(groups, 1)
    seen, weighted = sums[..., :1], sums[..., 1:]
    part = np.divide(weighted, seen, out=np.zeros_like(weighted), where=seen > 0)
    with np.errstate(divide="ignore"):
        return part * (2 + q[..., :1]), np.log(seen.clip(0)) + q[..., :1]


def attend_backward(
    q: Array, dout: Array, delta: Array, lse: Array, k: Array, v: Array, pairs: Pairs
) -> tuple[Array, Array, Array]:
    """The shares of these pairs in dq, dk and dv; delta: the sums of dout * out."""
    groups = q.shape[1] // k.shape[1]
    keys, queries = np.exp(k[..., :1]), np.exp(q[..., :1] - lse)
    queries = np.where(np.isneginf(lse), 0, queries)
    dp = outer(v, k)
    seen = pairs.keys.sums(keys * np.concatenate([dp, k], axis=3)).repeat(groups, 1)
    dp, rest = seen[..., : dp.shape[3]], seen[..., dp.shape[3] :]
    dq = queries * ((dp.reshape(*dout.shape, -1) * dout[..., None]).sum(3) + delta * rest)
    from_q = np.concatenate([outer(dout, q), delta * q, dout * (2 + q[..., :1])], axis=3)
    from_q = pairs.queries.sums(queries * from_q)
    from_q = from_q.reshape(*k.shape[:2], groups, *from_q.shape[2:]).sum(2)
    a, b = dout.shape[3] * q.shape[3], dout.shape[3] * q.shape[3] + q.shape[3]
    dk = (from_q[..., :a].reshape(*v.shape, -1) * v[..., None]).sum(3) + from_q[..., a:b]
    return dq, keys * dk, keys * from_q[..., b:]


def outer(x: Array, y: Array) -> Array:
    """All products of an element of x and one of y, of each token."""
    return (x[..., :, None] * y[..., None, :]).reshape(*x.shape[:3], -1)
