"""Attention added to accumulators: some queries, some keys, the sums that they change."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.bands import tiles
from ringloom.codegen.torch.parts.kernels import (
    attend,
    attend_backward,
    counts_from_end,
    takes_windows,
)
from ringloom.codegen.torch.parts.merge import merge, wide

STEP = 1  # between the tokens of a piece
SEQ = KV_SEQ = 1
V_HEAD_DIM = 1
UNEQUAL = WINDOWS = True


# ---- Accumulators: partial attention is merged, partial gradients are added, both in place.

every = slice(None)


def merge_attention(
    out: Any, queries: Any, kv: Any, causal: Any, rows: slice = every, cols: slice = every
) -> None:
    """Attend some queries to some keys, and merge the result into partial attention."""
    (q,), (k, v) = tokens(queries, rows), tokens(kv, cols)
    output, lse = tokens(out, rows)
    merge(output, lse, *attend(q, k, v, causal))


def add_gradients(
    dq: Any,
    dkv: Any,
    queries: Any,
    kv: Any,
    causal: Any,
    rows: slice = every,
    cols: slice = every,
) -> None:
    """Add the gradients that some queries and some keys give each other."""
    part: Any = *tokens(queries, rows), *tokens(kv, cols), causal
    part = attend_backward(*part)
    add([*tokens(dq, rows), *tokens(dkv, cols)], part)


def merge_tiles(
    out: Any,
    queries: Any,
    kv: Any,
    at: Tensor,
    kv_at: Tensor,
    rows: slice = every,
    cols: slice = every,
) -> None:
    """Attend what the mask leaves of tokens at these positions, by as many calls as it takes."""
    out, queries, kv = tokens(out, rows), tokens(queries, rows), tokens(kv, cols)
    for own, others, band in cut(queries[0], kv, at[rows], kv_at[cols]):
        merge_attention(out, queries, kv, band, own, others)


def add_tile_gradients(
    dq: Any,
    dkv: Any,
    queries: Any,
    kv: Any,
    at: Tensor,
    kv_at: Tensor,
    rows: slice = every,
    cols: slice = every,
) -> None:
    """Add the gradients of what the mask leaves of tokens at these positions."""
    dq, queries = tokens(dq, rows), tokens(queries, rows)
    dkv, kv = tokens(dkv, cols), tokens(kv, cols)
    for own, others, band in cut(queries[1], kv, at[rows], kv_at[cols]):
        add_gradients(dq, dkv, queries, kv, band, own, others)


def cut(q: Tensor, kv: list[Tensor], at: Tensor, kv_at: Tensor) -> list[Any]:
    """The kernel calls of queries and keys at these positions."""
    own, others, late = runs(at + (KV_SEQ - SEQ)), runs(kv_at), counts_from_end(q, *kv)
    if WINDOWS:
        return tiles(own, others, late, takes_windows(q))
    else:
        return tiles(own, others, late)


def runs(at: Tensor) -> tuple[range, ...]:
    """Ascending positions as ranges of tokens that are STEP apart."""
    ends = ((at.diff() != STEP).nonzero()[:, 0] + 1).tolist()
    return tuple(range(int(x[0]), int(x[-1]) + 1, STEP) for x in at.tensor_split(ends))


def tokens(tensors: Iterable[Tensor], where: Any) -> list[Tensor]:
    """Some tokens of each tensor; of a slice, as views."""
    return [x[:, :, where] for x in tensors]


def heads(tensors: Iterable[Tensor], slices: int, number: int) -> list[Tensor]:
    """One of so many slices of the heads of each tensor, as views; counted around."""
    return [x.chunk(slices, 1)[number % slices] for x in tensors]


def some_heads(tensors: Iterable[Tensor], slices: int, where: slice) -> list[Tensor]:
    """Some of so many slices of the heads of each tensor, joined."""
    return [torch.cat(x.chunk(slices, 1)[where], 1) for x in tensors]


def repeat_heads(tensors: Iterable[Tensor], copies: int) -> list[Tensor]:
    """So many copies of each head, beside each other: for fewer heads than ranks."""
    return [x.repeat_interleave(copies, 1) for x in tensors]


def add_repeated(gradients: Iterable[Tensor], copies: int) -> list[Tensor]:
    """Gradients of heads, given those of so many copies of each."""
    return [x.unflatten(1, (-1, copies)).sum(2) for x in gradients]


def merge_heads(out: Any, slices: int, where: slice, parts: Any) -> None:
    """Merge partial attention of some slices of the heads."""
    numbers = range(slices)[where]
    chunks = (x.chunk(len(numbers), 1) for x in parts)
    for number, part in zip(numbers, zip(*chunks, strict=True), strict=False):  # or none came
        output, lse = heads(out, slices, number)
        merge(output, lse, *part)


def add_heads(sums: Any, slices: int, where: slice, parts: Any) -> None:
    """Add partial gradients of some slices of the heads."""
    numbers = range(slices)[where]
    chunks = (x.chunk(len(numbers), 1) for x in parts)
    for number, part in zip(numbers, zip(*chunks, strict=True), strict=False):  # or none came
        add(heads(sums, slices, number), part)


def zero_output(queries: list[Tensor]) -> list[Tensor]:
    """Begin partial attention: output, and log-sum-exp [batch, heads, tokens, 1] of no keys."""
    (out,) = zeros(queries[:1])
    if UNEQUAL:
        out = out.new_zeros((*out.shape[:3], V_HEAD_DIM))
    return [out, torch.full_like(out[..., :1], -torch.inf)]


def zeros(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Begin partial gradients of some tensors."""
    return [torch.zeros_like(x, dtype=wide(x)) for x in tensors]


def add(totals: Iterable[Tensor], shares: Iterable[Tensor]) -> None:
    """Add partial gradients to others, in place; where none came, nothing."""
    for total, share in zip(totals, shares, strict=False):
        total += share


def clear(sums: Iterable[Tensor]) -> None:
    """Zero partial gradients in place."""
    for x in sums:
        x *= 0


def merge_all(out: list[Tensor], parts: list[Tensor], count: int) -> None:
    """Merge the partial attention of several ranks, one after the other in `parts`."""
    output, lse = out
    for part in zip(*(x.chunk(count) for x in parts), strict=True):
        merge(output, lse, *part)


def narrow(sums: Iterable[Tensor], like: Tensor) -> list[Tensor]:
    """Complete sums in the dtype of the inputs."""
    return [x.to(like.dtype) for x in sums]
