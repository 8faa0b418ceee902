"""The mask of the self-check where tables are an argument: packed documents."""

from itertools import pairwise

import jax.numpy as jnp

from codegen.jax.parts.dynamic_tables import make_tables

KV_SEQ = 1
CUTS = (0,)

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
