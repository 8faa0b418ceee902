"""Messages between ranks: each function sends arrays and returns what arrives."""

import jax.numpy as jnp
from jax import lax

# ---- Messages between ranks.


def exchange(x, axis, pairs, other=None):
    """Send arrays by pairs of sender and receiver.

    A rank that receives nothing returns `other`, or zeros.
    """
    came = lax.ppermute(x, axis, pairs)
    return came if other is None else receive(came, other, axis, pairs)


def receive(came, other, axis, pairs):
    """Return the arrays that came by pairs of sender and receiver, or `other` if nothing came."""
    arrived = receives(axis, pairs)
    return [jnp.where(arrived, new, old) for new, old in zip(came, other, strict=True)]


def exchange_output(x, axis, pairs):
    """Send partial attention to one rank; without arrival, return attention to no keys."""
    out, lse = lax.ppermute(x, axis, pairs)
    return [out, jnp.where(receives(axis, pairs), lse, -jnp.inf)]


def receives(axis, pairs):
    """Return True on the ranks that receive something."""
    return jnp.isin(lax.axis_index(axis), jnp.array([to for _, to in pairs], int))


def gather(x, axis, groups=None):
    """All-gather tokens within a group, in the order of ranks."""
    return [lax.all_gather(y, axis, axis=2, tiled=True, axis_index_groups=groups) for y in x]


def reduce(x, axis, groups=None):
    """Reduce-scatter sums for gathered tokens to the ranks that own them."""
    rules = {"scatter_dimension": 2, "tiled": True, "axis_index_groups": groups}
    return [lax.psum_scatter(y, axis, **rules) for y in x]


def swap(x, split, join, axis, groups=None):
    """All-to-all: split along one axis, join the received parts along another."""
    rules = {"tiled": True, "axis_index_groups": groups}
    return [lax.all_to_all(y, axis, split, join, **rules) for y in x]


def broadcast(x, root, axis):
    """Broadcast the arrays of one rank, the root."""
    own = lax.axis_index(axis) == root
    return lax.psum([jnp.where(own, y, 0) for y in x], axis)


def reduce_to(x, root, axis):
    """Reduce arrays over all ranks to the root; other ranks get zeros."""
    own = lax.axis_index(axis) == root
    return [jnp.where(own, y, 0) for y in lax.psum(x, axis)]
