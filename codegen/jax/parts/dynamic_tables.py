"""The tables of a program that takes them as an argument."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.jax.parts.dynamic_calls import calls_of

SEQ = KV_SEQ = 1
PLAN: dict[str, Any] = {}
ROWS: dict[str, Any] = {}
IDENTITY = 0

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import KEYS, QUERIES

# ---- Tables: the mask cut into calls, one band in one box of a tile each.


def make_tables(boxes: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The tables of a mask, which is a list of disjoint boxes (i0, i1, j0, j1, low, high).

    Query i, counted so that the last query meets the last key, sees key j if i0 <= i < i1,
    j0 <= j < j1 and low <= j - i <= high in one of them. Raises ValueError for a mask that needs
    more than PLAN["max_calls"] calls of a rank in a step.
    """
    spans = spans_of(QUERIES.at) + (KV_SEQ - SEQ), spans_of(KEYS.at)
    most = int(str(PLAN["max_calls"]))
    calls = {name: calls_of(tiles, *spans, boxes, most) for name, (_, tiles) in ROWS.items()}
    return {"plan": np.array(IDENTITY, np.int32), **calls}


def spans_of(at):
    """The first and the last position of each block [blocks, 2]; of none a span before all."""
    first = np.where(at < 0, 2**29, at).min(1)
    return np.stack([first, at.max(1)], 1)


def load(path: str) -> dict[str, np.ndarray]:
    """The tables in a file, as `ringloom tables jax` writes it."""
    with np.load(path) as file:
        return dict(file)


def check_tables(tables):
    """Raise ValueError for tables of another program; if JAX traces them, say if they fit."""
    for name, (_, tiles) in ROWS.items():
        shape = *tiles.shape[:2], PLAN["max_calls"], tiles.shape[3] + 6
        if tables[name].shape != shape:
            raise ValueError(f"tables {name} are {[*tables[name].shape]}, not {[*shape]}")
    fit = jnp.asarray(tables["plan"]) == IDENTITY
    if not isinstance(fit, jax.core.Tracer) and not fit:
        raise ValueError(f"tables of plan {int(tables['plan'])}, not {IDENTITY}")
    return fit
