"""Programs that take tables as an argument: the tables of a mask, and the function to call."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ringloom.codegen.jax.parts.function import refuse_second_derivatives, sharded_call
from ringloom.codegen.jax.parts.tables.arrays import calls_of
from ringloom.codegen.jax.parts.tables.table import (
    key_blocks,
    passes,
    query_blocks,
    run_backward,
    run_forward,
)

RANKS = SEQ = KV_SEQ = IDENTITY = CUT = 0
BACKWARD = True
PLAN: dict[str, Any] = {}

# ---- The function to call


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    tables: dict[str, jax.Array],
    *,
    mesh: Mesh,
    axis: str = "sp",
    batch_axis: str | None = None,
    head_axis: str | None = None,
) -> jax.Array:
    """Compute exact attention over a sequence that is sharded over `axis` of a mesh.

    q and the result: [batch, heads, tokens, head_dim], k and v: [batch, KV heads, ...]; tokens in
    layout order, shard after shard. Axes `batch_axis` and `head_axis` shard batch and heads.
    tables: by `make_tables` or `load`; the result is NaN if traced tables are of another program.
    Shapes are global and equal on all hosts. Raises ValueError for a length that does not fit the
    layout, wrong head counts, mixed or non-float dtypes, and meshes of the wrong size.
    """
    fit = jnp.where(check_tables(tables), 1, jnp.nan)
    run, spec = sharded_call(q, k, v, mesh, axis, batch_axis, head_axis)
    return run(in_specs=(spec, spec, spec, PartitionSpec()))(q, k, v, tables) * fit


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def local_attention(q, k, v, tables, axis):
    return forward(q, k, v, tables, axis)[0]


def forward(q, k, v, tables, axis):
    """Return output and residuals."""
    out, saved = run_forward(q, k, v, axis, tables["forward"])
    return out, (*saved, tables)


if BACKWARD:

    def backward(axis, saved, dout):
        """Return gradients of a device's queries, keys and values; None for the tables."""
        *arrays, tables = saved
        return *run_backward(axis, arrays, dout, tables["backward"]), None


backward_rule = jax.custom_jvp(backward, nondiff_argnums=(0,))
backward_rule.defjvp(refuse_second_derivatives)
local_attention.defvjp(forward, backward_rule)


# ---- Tables: the mask as a list of calls, each of one band in one box of a tile.


def tile_mask(i, j, i0, i1, j0, j1, low, high):
    """Return positions of a query block and a key block in a box, and the mask of the box."""
    rows, cols = jnp.asarray(query_blocks.at)[i], jnp.asarray(key_blocks.at)[j]
    aligned = rows + (KV_SEQ - SEQ)
    rows = jnp.where((i0 <= aligned) & (aligned < i1), rows, -1)
    cols = jnp.where((j0 <= cols) & (cols < j1), cols, -1)
    return rows, cols, lambda i, j: (low <= j - i) & (j - i <= high)


def make_tables(boxes: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the tables of a mask that is given as disjoint boxes (i0, i1, j0, j1, low, high).

    Query i, aligned so that the last query has the position of the last key, sees key j if
    i0 <= i < i1, j0 <= j < j1 and low <= j - i <= high in one box. Raises ValueError for boxes that
    share a pair, and for a mask that needs more than PLAN["max_calls"] calls per rank and step.
    """
    refuse_overlaps(np.array(boxes, np.int64).reshape(-1, 6))
    most: Any = PLAN["max_calls"]
    rules = query_blocks, key_blocks, KV_SEQ - SEQ, boxes, most
    calls = {name: calls_of(steps.tiles, *rules) for name, steps in passes.items()}
    return {"plan": np.array(IDENTITY, np.int32), **calls}


def refuse_overlaps(boxes):
    """Raise ValueError if two boxes share a pair, which would count twice."""
    ends = np.array([1, -1, 1, -1, 1, -1])  # 1: lower bounds, -1: upper bounds
    for n, box in enumerate(boxes):
        i0, i1, j0, j1, low, high = (np.maximum(boxes[:n] * ends, box * ends) * ends).T
        near = (np.maximum(low, j0 - i1 + 1) <= np.minimum(high, j1 - 1 - i0)) & (i0 < i1)
        if (near & (j0 < j1)).any():
            raise ValueError(f"box {n} {box.tolist()} shares a pair with an earlier box")


def load(path: str) -> dict[str, np.ndarray]:
    """Load the tables in a file written by `ringloom tables jax`."""
    with np.load(path) as file:
        return dict(file)


def check_tables(tables):
    """Raise ValueError for tables of another program; return True if they fit, perhaps traced."""
    for name, steps in passes.items():
        shape = *steps.tiles.shape[:2], PLAN["max_calls"], steps.tiles.shape[3] + 6
        if tables[name].shape != shape:
            raise ValueError(f"tables {name} have shape {[*tables[name].shape]}, not {[*shape]}")
    fit = jnp.asarray(tables["plan"]) == IDENTITY
    if not isinstance(fit, jax.core.Tracer) and not fit:
        raise ValueError(
            f"these tables are for plan {int(tables['plan'])}, not for plan {IDENTITY}"
        )
    return fit


# ---- Self-check


def allowed(i, j):
    """Return the mask of the self-check: causal within two documents, divided at CUT."""
    return ((i < CUT) == (j < CUT)) & (j <= i)


def example():
    """Return the tables of the mask of the self-check."""
    return make_tables([(a, b, a, b, -KV_SEQ, 0) for a, b in ((0, CUT), (CUT, KV_SEQ))])
