"""Adds the attention of some queries and keys to accumulators."""

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
from ringloom.codegen.torch.parts.merge import accum_dtype, merge

STEP = 1  # between the tokens of a piece
SEQ = KV_SEQ = 1
V_HEAD_DIM = 1
UNEQUAL = WINDOWS = True


# ---- Accumulators: merge partial attention and add partial gradients, in place.

all_tokens = slice(None)


def merge_attention(
    out: Any, queries: Any, kv: Any, causal: Any, rows: slice = all_tokens, cols: slice = all_tokens
) -> None:
    """Attend queries to keys, and merge the result into partial attention."""
    (q,), (k, v) = tokens(queries, rows), tokens(kv, cols)
    output, lse = tokens(out, rows)
    merge(output, lse, *attend(q, k, v, causal))


def add_gradients(
    dq: Any,
    dkv: Any,
    queries: Any,
    kv: Any,
    causal: Any,
    rows: slice = all_tokens,
    cols: slice = all_tokens,
) -> None:
    """Add the gradients of the attention of queries to keys."""
    part: Any = *tokens(queries, rows), *tokens(kv, cols), causal
    part = attend_backward(*part)
    add([*tokens(dq, rows), *tokens(dkv, cols)], part)


def merge_tiles(
    out: Any,
    queries: Any,
    kv: Any,
    at: Tensor,
    kv_at: Tensor,
    rows: slice = all_tokens,
    cols: slice = all_tokens,
) -> None:
    """Attend tokens at these positions under the mask, in as many kernel calls as needed."""
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
    rows: slice = all_tokens,
    cols: slice = all_tokens,
) -> None:
    """Add the gradients of the attention of tokens at these positions under the mask."""
    dq, queries = tokens(dq, rows), tokens(queries, rows)
    dkv, kv = tokens(dkv, cols), tokens(kv, cols)
    for own, others, band in cut(queries[1], kv, at[rows], kv_at[cols]):
        add_gradients(dq, dkv, queries, kv, band, own, others)


def cut(q: Tensor, kv: list[Tensor], at: Tensor, kv_at: Tensor) -> list[Any]:
    """Return the kernel calls of queries and keys at these positions."""
    own, others, late = runs(at + (KV_SEQ - SEQ)), runs(kv_at), counts_from_end(q, *kv)
    if WINDOWS:
        return tiles(own, others, late, takes_windows(q))
    else:
        return tiles(own, others, late)


def runs(at: Tensor) -> tuple[range, ...]:
    """Return ascending positions as ranges of step STEP."""
    ends = ((at.diff() != STEP).nonzero()[:, 0] + 1).tolist()
    return tuple(range(int(x[0]), int(x[-1]) + 1, STEP) for x in at.tensor_split(ends))


def tokens(tensors: Iterable[Tensor], where: Any) -> list[Tensor]:
    """Select tokens of each tensor; views if `where` is a slice."""
    return [x[:, :, where] for x in tensors]


def heads(tensors: Iterable[Tensor], slices: int, number: int) -> list[Tensor]:
    """Select slice `number % slices` of the heads of each tensor, as views."""
    return [x.chunk(slices, 1)[number % slices] for x in tensors]


def some_heads(tensors: Iterable[Tensor], slices: int, where: slice) -> list[Tensor]:
    """Select and join several of `slices` slices of the heads of each tensor."""
    return [torch.cat(x.chunk(slices, 1)[where], 1) for x in tensors]


def repeat_heads(tensors: Iterable[Tensor], copies: int) -> list[Tensor]:
    """Repeat each head `copies` times in a row, for fewer heads than ranks."""
    return [x.repeat_interleave(copies, 1) for x in tensors]


def add_repeated(gradients: Iterable[Tensor], copies: int) -> list[Tensor]:
    """Sum the gradients of `copies` copies of each head."""
    return [x.unflatten(1, (-1, copies)).sum(2) for x in gradients]


def merge_heads(out: Any, slices: int, where: slice, parts: Any) -> None:
    """Merge partial attention into some slices of the heads."""
    numbers = range(slices)[where]
    chunks = (x.chunk(len(numbers), 1) for x in parts)
    for number, part in zip(numbers, zip(*chunks, strict=True), strict=False):  # may be empty
        output, lse = heads(out, slices, number)
        merge(output, lse, *part)


def add_heads(sums: Any, slices: int, where: slice, parts: Any) -> None:
    """Add partial gradients to some slices of the heads."""
    numbers = range(slices)[where]
    chunks = (x.chunk(len(numbers), 1) for x in parts)
    for number, part in zip(numbers, zip(*chunks, strict=True), strict=False):  # may be empty
        add(heads(sums, slices, number), part)


def zero_output(queries: list[Tensor]) -> list[Tensor]:
    """Return partial attention to no keys: output, log-sum-exp [batch, heads, tokens, 1]."""
    (out,) = zeros(queries[:1])
    if UNEQUAL:
        out = out.new_zeros((*out.shape[:3], V_HEAD_DIM))
    return [out, torch.full_like(out[..., :1], -torch.inf)]


def zeros(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return zero gradients of some tensors."""
    return [torch.zeros_like(x, dtype=accum_dtype(x)) for x in tensors]


def add(totals: Iterable[Tensor], shares: Iterable[Tensor]) -> None:
    """Add partial gradients in place; `shares` is empty if none arrived."""
    for total, share in zip(totals, shares, strict=False):
        total += share


def clear(sums: Iterable[Tensor]) -> None:
    """Zero partial gradients in place."""
    for x in sums:
        x *= 0


def merge_all(out: list[Tensor], parts: list[Tensor], count: int) -> None:
    """Merge the partial attention of `count` ranks, concatenated in `parts`."""
    output, lse = out
    for part in zip(*(x.chunk(count) for x in parts), strict=True):
        merge(output, lse, *part)


def narrow(sums: Iterable[Tensor], like: Tensor) -> list[Tensor]:
    """Round complete sums to the dtype of the inputs."""
    return [x.to(like.dtype) for x in sums]
