"""Packed batches: documents by their cumulative lengths, as flash-attn takes them, and back."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import PlanError
from planner.masks.chunks import Chunks
from planner.masks.documents import Documents, Varlen
from planner.masks.mask import And, Mask, Pair
from planner.masks.plain import Causal, Full
from planner.masks.regions import FAR, Ints
from planner.masks.slices import Slices
from planner.masks.tree import Tree, ancestors
from planner.masks.window import Window

WIDE = (-1, -1)


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
    window_size: tuple[int, int] = WIDE,
) -> Mask:
    """Returns the mask of packed documents with flash-attn's meaning, -1 being unbounded.

    cu_seqlens are where documents begin, and where the last one ends: [documents + 1], from 0.
    With other cumulative lengths of keys, as in chunked prefill and decoding, causal and windows
    count from the end of each document: its last query is at its last key. Raises PlanError for
    numbers that are not cumulative lengths.
    """
    q = _ascending("cu_seqlens_q", cu_seqlens_q)
    k = q if cu_seqlens_k is None else _ascending("cu_seqlens_k", cu_seqlens_k)
    if len(q) != len(k):
        raise PlanError(f"{len(q) - 1} documents of queries, but {len(k) - 1} of keys")
    left, right = (None if side < 0 else side for side in window_size)
    if causal:
        right = 0
    if np.array_equal(q, k):
        mask: Mask = Documents(_lengths(k))
        if (left, right) == (None, 0):
            return Causal() & mask
        return mask if left is right is None else mask & Window(left, right)
    if left is right is None:
        return Documents(_lengths(k), _lengths(q))
    return Varlen(_lengths(k), _lengths(q), left, right)


def to_cu_seqlens(mask: Mask) -> CuSeqlens:
    """Returns the arguments of `flash_attn_varlen_func` for documents, causal or in a window too.

    Raises PlanError for any other mask, and for documents that are causal by their places in the
    sequence where flash-attn would count from the end of each.
    """
    factors, left, right = [*_factors(mask)], FAR, FAR
    q, k, kind = _documents(factors, Documents, Varlen, Chunks, Slices)
    for factor in factors:
        match factor:
            case Causal():
                right = min(right, 0)
            case Window():
                left = min(left, FAR if factor.left is None else factor.left)
                right = min(right, FAR if factor.right is None else factor.right)
            case Varlen() if len(factors) == 1:
                left = FAR if factor.left is None else factor.left
                right = FAR if factor.right is None else factor.right
            case Full() | Documents() | Chunks() | Slices():
                pass
            case _:
                raise PlanError(f"cumulative lengths cannot say {factor}, a part of {mask}")
    banded = left < FAR or right < FAR
    if banded and kind != "varlen" and (kind == "causal" or (q[1:] != k[1:]).any()):
        raise PlanError(f"{mask}: flash-attn would count from the end of each document")
    right = 0 if kind == "causal" else right
    cu_q, cu_k = ((side - side[0]).astype(np.int32) for side in (q, k))
    most_q, most_k = (int(np.diff(side).max()) for side in (q, k))
    window = -1 if left == FAR else left, -1 if right == FAR else right
    return CuSeqlens(cu_q, cu_k, most_q, most_k, right == 0, window)


def origins(mask: Mask, side: Literal["q", "kv"]) -> tuple[Ints, Ints]:
    """Returns where documents begin on a side, and which position is the zeroth of each.

    Both int64 [documents], of aligned queries or of keys. A tree's nodes are documents that begin
    where their path begins; without documents the sequence is one. Raises PlanError where the mask
    has documents, but not one for every token.
    """
    factors = [*_factors(mask)]
    for factor in factors:
        if isinstance(factor, Tree):
            begins = factor.bounds()[:-1]
            return begins, begins - ancestors(factor.parents) @ np.array(factor.lengths)
    if not any(isinstance(leaf, Documents | Varlen | Slices | Tree) for leaf in _leaves(mask)):
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    q, k, _ = _documents(factors, Documents, Varlen, Slices)
    return (q[:-1], q[1:] - np.diff(k)) if side == "q" else (k[:-1], k[:-1])


def _factors(mask: Mask) -> Iterator[Mask]:
    """Yields the masks that are joined by &."""
    if isinstance(mask, And):
        yield from (*_factors(mask.left), *_factors(mask.right))
    else:
        yield mask


def _leaves(mask: Mask) -> Iterator[Mask]:
    """Yields the masks that are joined by anything."""
    if isinstance(mask, Pair):
        yield from (*_leaves(mask.left), *_leaves(mask.right))
    else:
        yield mask


def _documents(factors: list[Mask], *types: type[Mask]) -> tuple[Ints, Ints, str]:
    """Returns bounds of documents in aligned queries and in keys, and the kind of their rules."""
    packed = [factor for factor in factors if isinstance(factor, types)]
    match packed:
        case [Documents() as documents]:
            return *documents.bounds(), ""
        case [Varlen() as varlen]:
            return *varlen.documents.bounds(), "varlen"
        case [Chunks() as chunks]:
            bounds = np.append(chunks.bounds()[0], [chunks.tokens])
            return bounds, bounds, ""
        case [Slices() as slices]:
            q, k = ([*(row[at] for row in slices.rows), slices.rows[-1][at + 1]] for at in (0, 2))
            ends = [(row[1], row[3]) for row in slices.rows]
            kinds = {row[4] for row in slices.rows}
            if ends == [*zip(q[1:], k[1:], strict=True)] and kinds in ({"full"}, {"causal"}):
                return np.array(q), np.array(k), kinds.pop()
    mask = " & ".join(map(str, factors))
    raise PlanError(
        f"{mask:.200} does not divide queries and keys into documents, one after the other"
    )


def _ascending(name: str, values: ArrayLike) -> Ints:
    """Cumulative lengths as numbers; raises PlanError unless they ascend from 0."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2 or array[0] != 0:
        raise PlanError(f"{name} must be whole numbers that ascend from 0, not {values!r:.60}")
    numbers = array.astype(np.int64)
    if (np.diff(numbers) < 0).any():
        raise PlanError(f"{name} must ascend, not {values!r:.60}")
    return numbers


def _lengths(bounds: Ints) -> tuple[int, ...]:
    return tuple(np.diff(bounds).tolist())
