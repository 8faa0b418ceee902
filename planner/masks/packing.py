"""Packed batches: converts documents to and from the cumulative lengths of flash-attn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import require_integer
from ringloom.planner.masks.documents import Documents, Varlen
from ringloom.planner.masks.mask import Mask, check_mask, no_documents_error
from ringloom.planner.masks.plain import Causal
from ringloom.planner.masks.regions import FAR
from ringloom.planner.masks.window import Window


class CuSeqlens(NamedTuple):
    """Arguments of `flash_attn_varlen_func` that express a mask."""

    cu_seqlens_q: NDArray[np.int32]
    cu_seqlens_k: NDArray[np.int32]
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    window_size: tuple[int, int]


def within_documents(mask: Mask, lengths: Iterable[int]) -> Mask:
    """Applies a mask within each document; `lengths` are in tokens."""
    return mask & Documents(tuple(lengths))


def from_cu_seqlens(
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    cu_seqlens_q_padded: ArrayLike | None = None,
    cu_seqlens_k_padded: ArrayLike | None = None,
) -> Mask:
    """Returns the mask of packed documents, with arguments as in flash-attn; -1 is unbounded.

    cu_seqlens are cumulative lengths from 0: [documents + 1]; cu_seqlens_k defaults to
    cu_seqlens_q. If they differ, as in chunked prefill and decoding, causal masks and windows count
    from the end of each document, so its last query is aligned with its last key. Padded cumulative
    lengths, as in TransformerEngine, are the starts of documents that have padding after their
    tokens; padding sees nothing and is not seen. Raises PlanError for invalid cumulative lengths,
    and for padded lengths that are too short.
    """
    q = _lengths("cu_seqlens_q", cu_seqlens_q)
    k = q if cu_seqlens_k is None else _lengths("cu_seqlens_k", cu_seqlens_k)
    if len(q) != len(k):
        raise PlanError(f"{len(q)} documents of queries, but {len(k)} of keys")
    if cu_seqlens_k is None and cu_seqlens_k_padded is None:
        cu_seqlens_k_padded = cu_seqlens_q_padded
    q_padding = _padding("cu_seqlens_q_padded", cu_seqlens_q_padded, q)
    k_padding = _padding("cu_seqlens_k_padded", cu_seqlens_k_padded, k)
    left, right = _sides(window_size)
    right = 0 if causal else right
    if any((*q_padding, *k_padding)):
        q, k = _with_padding(q, k, q_padding, k_padding)
    documents = Documents(k) if q == k else Documents(k, q)
    if left is right is None:
        return documents
    if q != k:
        return Varlen(k, q, left, right)
    return Causal() & documents if (left, right) == (None, 0) else documents & Window(left, right)


def to_cu_seqlens(mask: Mask) -> CuSeqlens:
    """Returns the arguments of `flash_attn_varlen_func` for a mask of documents.

    The documents may be causal or have a window. Query lengths default to the key lengths. Raises
    PlanError for any other mask, and if flash-attn would align queries and keys differently: at the
    end of each document instead of the end of the sequence.
    """
    sides, left, right, from_ends = check_mask(mask).packed()
    if sides is None:
        raise no_documents_error(mask)
    q, k = sides
    has_band = left < FAR or right < FAR
    if has_band and not from_ends and (q[1:] != k[1:]).any():
        raise PlanError(f"{mask}: flash-attn would count from the end of each document")
    cu_q, cu_k = ((side - side[0]).astype(np.int32) for side in sides)
    most_q, most_k = (int(np.diff(side).max()) for side in sides)
    window = -1 if left == FAR else left, -1 if right == FAR else right
    return CuSeqlens(cu_q, cu_k, most_q, most_k, right == 0, window)


def _lengths(name: str, values: ArrayLike) -> tuple[int, ...]:
    """Returns the lengths of cumulative lengths; raises PlanError unless these ascend from 0."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2 or array[0] != 0:
        raise PlanError(f"{name} must be integers that ascend from 0, not {brief(values)}")
    lengths = np.diff(array.astype(np.int64))
    if (lengths < 0).any():
        raise PlanError(f"{name} must ascend, not {brief(values)}")
    return tuple(lengths.tolist())


def _sides(window_size: tuple[int, int]) -> list[int | None]:
    """Returns the window's left and right, with None for -1; raises PlanError if invalid."""
    if not isinstance(window_size, Iterable) or len(sides := [*window_size]) != 2:
        raise PlanError(
            f"window_size must be (keys to the left, to the right), not {brief(window_size)}"
        )
    widths = (require_integer("window_size", side, -1) for side in sides)
    return [width if width >= 0 else None for width in widths]


def _padding(name: str, values: ArrayLike | None, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the tokens of padding after each document; raises PlanError for wrong lengths."""
    if values is None:
        return (0,) * len(lengths)
    padded = _lengths(name, values)
    if len(padded) != len(lengths):
        raise PlanError(f"{name} has {len(padded)} documents, not {len(lengths)}")
    padding = tuple(space - tokens for space, tokens in zip(padded, lengths, strict=True))
    if (least := min(padding)) < 0:
        n = padding.index(least)
        raise PlanError(f"{name}: document {n} of {lengths[n]} tokens has room for {padded[n]}")
    return padding


def _with_padding(
    q: tuple[int, ...], k: tuple[int, ...], q_padding: tuple[int, ...], k_padding: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Inserts a document of padding queries and one of padding keys after each document."""
    rows = zip(q, k, q_padding, k_padding, strict=True)
    pairs = [pair for a, b, c, d in rows for pair in ((a, b), (c, 0), (0, d)) if any(pair)]
    padded_q, padded_k = zip(*pairs, strict=True)
    return padded_q, padded_k
