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

STEP = 1  # between neighbouring tokens of a piece
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
    """Add the gradients from attending queries to keys."""
    inputs: Any = *tokens(queries, rows), *tokens(kv, cols), causal
    gradients = attend_backward(*inputs)
    add([*tokens(dq, rows), *tokens(dkv, cols)], gradients)


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
    for call_rows, call_cols, band in cut(queries[0], kv, at[rows], kv_at[cols]):
        merge_attention(out, queries, kv, band, call_rows, call_cols)


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
    """Add the gradients from attending tokens at these positions under the mask."""
    dq, queries = tokens(dq, rows), tokens(queries, rows)
    dkv, kv = tokens(dkv, cols), tokens(kv, cols)
    for call_rows, call_cols, band in cut(queries[1], kv, at[rows], kv_at[cols]):
        add_gradients(dq, dkv, queries, kv, band, call_rows, call_cols)


def cut(q: Tensor, kv: list[Tensor], at: Tensor, kv_at: Tensor) -> list[Any]:
    """Return the kernel calls of queries and keys at these positions."""
    row_runs, col_runs, from_end = runs(at + (KV_SEQ - SEQ)), runs(kv_at), counts_from_end(q, *kv)
    if WINDOWS:
        return tiles(row_runs, col_runs, from_end, takes_windows(q))
    else:
        return tiles(row_runs, col_runs, from_end)


def runs(at: Tensor) -> tuple[range, ...]:
    """Return ascending positions as ranges of step STEP."""
    ends = ((at.diff() != STEP).nonzero()[:, 0] + 1).tolist()
    return tuple(range(int(x[0]), int(x[-1]) + 1, STEP) for x in at.tensor_split(ends))


def tokens(tensors: Iterable[Tensor], index: Any) -> list[Tensor]:
    """Select tokens of each tensor, as views if `index` is a slice."""
    return [x[:, :, index] for x in tensors]


def heads(tensors: Iterable[Tensor], slices: int, number: int) -> list[Tensor]:
    """Select slice `number % slices` of the heads of each tensor, as views."""
    return [x.chunk(slices, 1)[number % slices] for x in tensors]


def some_heads(tensors: Iterable[Tensor], slices: int, selected: slice) -> list[Tensor]:
    """Select and join several slices of the heads of each tensor, out of `slices`."""
    return [torch.cat(x.chunk(slices, 1)[selected], 1) for x in tensors]


def repeat_heads(tensors: Iterable[Tensor], copies: int) -> list[Tensor]:
    """Repeat each head `copies` times in a row, where there are fewer heads than ranks."""
    return [x.repeat_interleave(copies, 1) for x in tensors]


def add_repeated(gradients: Iterable[Tensor], copies: int) -> list[Tensor]:
    """Sum the gradients of `copies` copies of each head."""
    return [x.unflatten(1, (-1, copies)).sum(2) for x in gradients]


def merge_heads(out: Any, slices: int, selected: slice, parts: Any) -> None:
    """Merge partial attention into some slices of the heads."""
    numbers = range(slices)[selected]
    chunks = (x.chunk(len(numbers), 1) for x in parts)
    for number, part in zip(numbers, zip(*chunks, strict=True), strict=False):  # may be empty
        output, lse = heads(out, slices, number)
        merge(output, lse, *part)


def add_heads(sums: Any, slices: int, selected: slice, parts: Any) -> None:
    """Add partial gradients to some slices of the heads."""
    numbers = range(slices)[selected]
    chunks = (x.chunk(len(numbers), 1) for x in parts)
    for number, part in zip(numbers, zip(*chunks, strict=True), strict=False):  # may be empty
        add(heads(sums, slices, number), part)


def zero_output(queries: list[Tensor]) -> list[Tensor]:
    """Return the attention to no keys: output and log-sum-exp [batch, heads, tokens, 1]."""
    (out,) = zeros(queries[:1])
    if UNEQUAL:
        out = out.new_zeros((*out.shape[:3], V_HEAD_DIM))
    return [out, torch.full_like(out[..., :1], -torch.inf)]


def zeros(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return zero gradients for some tensors."""
    return [torch.zeros_like(x, dtype=accum_dtype(x)) for x in tensors]


def add(sums: Iterable[Tensor], parts: Iterable[Tensor]) -> None:
    """Add partial gradients in place; `parts` is empty if none arrived."""
    for x, part in zip(sums, parts, strict=False):
        x += part


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
