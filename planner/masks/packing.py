"""Packed batches: documents by their cumulative lengths, as flash-attn takes them, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import PlanError
from planner.given import whole
from planner.masks.documents import Documents, Varlen
from planner.masks.mask import Mask, checked, undivided
from planner.masks.plain import Causal
from planner.masks.regions import FAR
from planner.masks.window import Window


class CuSeqlens(NamedTuple):
    """The arguments of `flash_attn_varlen_func` that say what a mask says."""

    cu_seqlens_q: NDArray[np.int32]
    cu_seqlens_k: NDArray[np.int32]
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    window_size: tuple[int, int]


def from_cu_seqlens(
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Mask:
    """Returns the mask of packed documents with flash-attn's meaning, -1 being unbounded.

    cu_seqlens are where documents begin, and where the last one ends: [documents + 1], from 0.
    With other cumulative lengths of keys, as in chunked prefill and decoding, causal and windows
    count from the end of each document: its last query is at its last key. Raises PlanError for
    numbers that are not cumulative lengths.
    """
    q = _lengths("cu_seqlens_q", cu_seqlens_q)
    k = q if cu_seqlens_k is None else _lengths("cu_seqlens_k", cu_seqlens_k)
    if len(q) != len(k):
        raise PlanError(f"{len(q)} documents of queries, but {len(k)} of keys")
    if not isinstance(window_size, Iterable) or len(sides := [*window_size]) != 2:
        raise PlanError(
            f"window_size is keys to the left and to the right, not {window_size!r:.60}"
        )
    left, right = (x if (x := whole("window_size", side, -1)) >= 0 else None for side in sides)
    right = 0 if causal else right
    documents = Documents(k) if q == k else Documents(k, q)
    if left is right is None:
        return documents
    if q != k:
        return Varlen(k, q, left, right)
    return Causal() & documents if (left, right) == (None, 0) else documents & Window(left, right)


def to_cu_seqlens(mask: Mask) -> CuSeqlens:
    """Returns the arguments of `flash_attn_varlen_func` for documents, causal or in a window too.

    Where the mask has no lengths of queries, there are as many as keys. Raises PlanError for any
    other mask, and for documents that are causal by their places in the sequence where flash-attn
    would count from the end of each.
    """
    sides, left, right, from_ends = checked(mask).packed()
    if sides is None:
        raise undivided(mask)
    q, k = sides
    banded = left < FAR or right < FAR
    if banded and not from_ends and (q[1:] != k[1:]).any():
        raise PlanError(f"{mask}: flash-attn would count from the end of each document")
    cu_q, cu_k = ((side - side[0]).astype(np.int32) for side in sides)
    most_q, most_k = (int(np.diff(side).max()) for side in sides)
    window = -1 if left == FAR else left, -1 if right == FAR else right
    return CuSeqlens(cu_q, cu_k, most_q, most_k, right == 0, window)


def _lengths(name: str, values: ArrayLike) -> tuple[int, ...]:
    """Returns the lengths of cumulative ones; raises PlanError unless they ascend from 0."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2 or array[0] != 0:
        raise PlanError(f"{name} must be whole numbers that ascend from 0, not {values!r:.60}")
    lengths = np.diff(array.astype(np.int64))
    if (lengths < 0).any():
        raise PlanError(f"{name} must ascend, not {values!r:.60}")
    return tuple(lengths.tolist())
