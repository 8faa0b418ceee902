"""Messages between ranks: what every rank gets of the arrays that it gives."""

import jax.numpy as jnp
from jax import lax

# ---- Messages between ranks.


def exchange(x, axis, pairs, other=None):
    """Give arrays to one rank, by pairs of sender and receiver.

    A rank to which nothing comes has `other`, or zeros.
    """
    came = lax.ppermute(x, axis, pairs)
    return came if other is None else receive(came, other, axis, pairs)


def receive(came, other, axis, pairs):
    """Arrays that came by pairs of sender and receiver; `other` where nothing did."""
    arrived = receives(axis, pairs)
    return [jnp.where(arrived, new, old) for new, old in zip(came, other, strict=True)]


def exchange_output(x, axis, pairs):
    """Give partial attention to one rank; where none comes, it is attention to no keys."""
    out, lse = lax.ppermute(x, axis, pairs)
    return [out, jnp.where(receives(axis, pairs), lse, -jnp.inf)]


def receives(axis, pairs):
    """True on the ranks to which something comes."""
    return jnp.isin(lax.axis_index(axis), jnp.array([to for _, to in pairs], int))


def gather(x, axis, groups=None):
    """Collect the tokens of all ranks of a group, one rank after the other."""
    return [lax.all_gather(y, axis, axis=2, tiled=True, axis_index_groups=groups) for y in x]


def reduce(x, axis, groups=None):
    """Sum over a group what its ranks computed for our tokens of those gathered."""
    rules = {"scatter_dimension": 2, "tiled": True, "axis_index_groups": groups}
    return [lax.psum_scatter(y, axis, **rules) for y in x]


def swap(x, split, join, axis, groups=None):
    """Give rank i of a group part i along one axis; join what all gave us along another."""
    rules = {"tiled": True, "axis_index_groups": groups}
    return [lax.all_to_all(y, axis, split, join, **rules) for y in x]


def broadcast(x, root, axis):
    """The arrays of one rank, the root."""
    own = lax.axis_index(axis) == root
    return lax.psum([jnp.where(own, y, 0) for y in x], axis)


def reduce_to(x, root, axis):
    """The sums over all ranks at one of them, the root; zeros at the others."""
    own = lax.axis_index(axis) == root
    return [jnp.where(own, y, 0) for y in lax.psum(x, axis)]
