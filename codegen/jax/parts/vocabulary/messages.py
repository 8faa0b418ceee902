"""Messages between ranks: each function sends arrays and returns what arrives."""

import jax.numpy as jnp
from jax import lax

# ---- Messages between ranks.


def exchange(x, axis, pairs, other=None):
    """Send arrays from the sender to the receiver of each pair.

    A rank that receives nothing returns `other`; by default, zeros.
    """
    arrays = lax.ppermute(x, axis, pairs)
    return arrays if other is None else receive(arrays, other, axis, pairs)


def receive(arrays, other, axis, pairs):
    """Return the received arrays, or `other` on ranks that receive nothing."""
    arrived = receives(axis, pairs)
    return [jnp.where(arrived, new, old) for new, old in zip(arrays, other, strict=True)]


def exchange_output(x, axis, pairs):
    """Send partial attention; a rank that receives nothing returns attention to no keys."""
    out, lse = lax.ppermute(x, axis, pairs)
    return [out, jnp.where(receives(axis, pairs), lse, -jnp.inf)]


def receives(axis, pairs):
    """Return True on the ranks that receive something."""
    return jnp.isin(lax.axis_index(axis), jnp.array([to for _, to in pairs], int))


def gather(x, axis, groups=None):
    """All-gather tokens within a group, in rank order."""
    return [lax.all_gather(y, axis, axis=2, tiled=True, axis_index_groups=groups) for y in x]


def reduce(x, axis, groups=None):
    """Reduce-scatter the sums of gathered tokens to their owners."""
    options = {"scatter_dimension": 2, "tiled": True, "axis_index_groups": groups}
    return [lax.psum_scatter(y, axis, **options) for y in x]


def swap(x, split, join, axis, groups=None):
    """Run an all-to-all: split arrays along one axis, join received parts along another."""
    options = {"tiled": True, "axis_index_groups": groups}
    return [lax.all_to_all(y, axis, split, join, **options) for y in x]


def broadcast(x, root, axis):
    """Broadcast the arrays of one rank, the root."""
    is_root = lax.axis_index(axis) == root
    return lax.psum([jnp.where(is_root, y, 0) for y in x], axis)


def reduce_to(x, root, axis):
    """Reduce arrays over all ranks to the root; other ranks get zeros."""
    is_root = lax.axis_index(axis) == root
    return [jnp.where(is_root, y, 0) for y in lax.psum(x, axis)]
