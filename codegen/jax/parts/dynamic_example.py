"""The mask of the self-check where tables are an argument: packed documents."""

from itertools import pairwise
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from codegen.jax.parts.dynamic_function import attention
from codegen.jax.parts.dynamic_tables import make_tables

RANKS = KV_SEQ = 1
CUTS = (0,)

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import shard, unshard

# ---- Self-check


def allowed(i, j):
    """The mask of the self-check: documents that begin at CUTS, causal within each."""
    return (place(i) == place(j)) & (j <= i)


def place(x):
    """The number of the document that a position lies in, counted from 1."""
    return jnp.searchsorted(jnp.array(CUTS), x, side="right")


def example():
    """The tables of this mask."""
    return make_tables([(a, b, a, b, -KV_SEQ, 0) for a, b in pairwise((*CUTS, KV_SEQ))])


def under(tables, mesh, q, k, v):
    """The output of this program under the mask of tables, of and in the order of the sequence."""
    q, k, v = (
        jnp.concatenate([shard(x, rank, side=side) for rank in range(RANKS)], 2)
        for x, side in ((q, "q"), (k, "kv"), (v, "kv"))
    )
    whole = NamedSharding(mesh, PartitionSpec())  # XLA fails to partition the gradient of this
    q, k, v = lax.with_sharding_constraint((q, k, v), whole)
    return unshard(jnp.split(attention(q, k, v, tables, mesh=mesh), RANKS, 2))
