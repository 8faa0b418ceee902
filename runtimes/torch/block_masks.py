"""Converts masks to and from the `BlockMask` of torch's flex attention.

to_block_mask     computes tiles from the mask's closed form, without a dense matrix
from_block_mask   evaluates mask_mod row by row; returns slices that allow the same pairs
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from ringloom.planner.errors import RingloomError, as_tuple_of, brief
from ringloom.planner.masks import Mask
from ringloom.planner.masks.areas import count_pairs
from ringloom.planner.masks.regions import Ints
from ringloom.planner.masks.slices import covering_mask
from ringloom.planner.workload import Workload

Bools = NDArray[np.bool_]
Rule = Callable[[Tensor, Tensor], Any]  # (query positions, key positions) -> allowed, elementwise


def to_block_mask(work: Workload, block_size: int = 128, device: Any = "cpu") -> BlockMask:
    """Returns the mask of a workload for `flex_attention` on the whole sequence.

    Its tables equal those of `create_block_mask` and have seq x kv_seq / block_size^2 entries.
    """
    as_tuple_of(Workload, (work,), "work")
    q, kv = (
        [range(a, min(a + block_size, tokens)) for a in range(0, tokens, block_size)]
        for tokens in (work.seq, work.kv_seq)
    )
    aligned = [(range(r.start + work.offset, r.stop + work.offset),) for r in q]
    counts = count_pairs(work.mask.region(), aligned, [(r,) for r in kv])
    full = counts == block_size**2
    tables = (x for marked in ((counts > 0) & ~full, full) for x in _order_columns(marked, device))
    rule = rule_of(work.mask, range(min(0, work.offset), work.kv_seq), device)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Any:
        return rule(q_idx + work.offset, kv_idx)

    lengths = work.seq, work.kv_seq
    return BlockMask.from_kv_blocks(*tables, block_size, mask_mod, lengths)


def from_block_mask(block_mask: BlockMask, heads: Iterable[int] | None = None) -> Mask:
    """Returns a causal, full or `Slices` mask that allows the same pairs as a `BlockMask`.

    heads: the heads to convert, by default all. Raises RingloomError if the mask differs between
    batch rows or between these heads.
    """
    as_tuple_of(BlockMask, (block_mask,), "block_mask")
    seq, kv_seq = block_mask.seq_lengths
    head_count = block_mask.kv_indices.shape[1]
    chosen = range(head_count) if heads is None else [*heads]
    if not chosen or not {*chosen} <= {*range(head_count)}:
        raise RingloomError(f"heads must be 0 to {head_count - 1}, not {brief(heads)}")
    return covering_mask(_rows(block_mask, seq, kv_seq, chosen), kv_seq - seq, kv_seq)


def rule_of(mask: Mask, positions: range, device: Any) -> Rule:
    """Returns the definition of a mask as a function of tensors of aligned positions.

    Searches for a position among bounds become lookups in a table of all positions.
    """
    first = positions.start
    tables, rules = dict[str, Tensor](), dict[str, Rule]()
    for name, value in mask.names.items():
        if isinstance(value, Mask):
            rules[name] = rule_of(value, positions, device)
        else:
            indexed = f"{name}[" in mask.expression
            table = value if indexed else np.searchsorted(value, positions, side="right")
            tables[name] = torch.tensor(table, device=device)
    names = ", ".join(["i", "j", "place", *tables, *rules])
    expression = eval(f"lambda {names}: {mask.expression}", {"__builtins__": {}})

    def place(x: Tensor, table: Tensor) -> Tensor:
        return table[x - first]

    def rule(i: Tensor, j: Tensor) -> Any:
        parts = [inner(i, j) for inner in rules.values()]
        queries = i.clip(0) if mask.from_zero else i
        pairs = expression(queries, j, place, *tables.values(), *parts)
        return pairs & (i >= 0) if mask.from_zero else pairs

    return rule


def _order_columns(table: Bools, device: Any) -> tuple[Tensor, Tensor]:
    """Returns the number of blocks per row, and the columns of each row, those with blocks first.

    Shapes: [1, 1, rows] and [1, 1, rows, columns].
    """
    arrays = table.sum(axis=1), np.argsort(~table, axis=1, kind="stable")
    counts, columns = (torch.tensor(x.astype(np.int32)[None, None], device=device) for x in arrays)
    return counts, columns


def _rows(block_mask: BlockMask, seq: int, kv_seq: int, heads: Sequence[int]) -> Iterator[Bools]:
    """Yields the keys that each query may attend to: bool [kv_seq]."""
    partial, full = _table(block_mask, ""), _table(block_mask, "full_")
    block_of = np.arange(kv_seq) // block_mask.BLOCK_SIZE[1]
    for number, first in enumerate(range(0, seq, block_mask.BLOCK_SIZE[0])):
        queries = np.arange(first, min(first + block_mask.BLOCK_SIZE[0], seq))
        head_pairs = list[Bools]()
        for row, head in product(range(len(partial)), heads):
            pairs = np.repeat(full[row, head][number, block_of][None], len(queries), axis=0)
            keys = np.flatnonzero(partial[row, head][number, block_of])
            pairs[:, keys] |= _evaluate(block_mask, (row, head), queries, keys)
            head_pairs.append(pairs)
            if not np.array_equal(pairs, head_pairs[0]):
                span = f"queries {first} to {queries[-1]} of"
                raise RingloomError(f"{span} {_remedy(row, head, heads[0])}")
        yield from head_pairs[0]


def _remedy(row: int, head: int, first: int) -> str:
    """Returns the end of an error: the batch rows or heads that differ, and a remedy."""
    if row:
        return f"batch rows 0 and {row} attend to different keys: pack the rows into documents"
    return (
        f"heads {first} and {head} attend to different keys: for each group of heads with the same"
        " mask, emit a program for from_block_mask(block_mask, heads=[...]), and call it with"
        " these heads"
    )


def _evaluate(block_mask: BlockMask, head: tuple[int, ...], queries: Ints, keys: Ints) -> Bools:
    """Returns the pairs that mask_mod allows: bool [queries, keys]."""
    if not len(keys):
        return np.zeros((len(queries), 0), np.bool_)
    by_key = torch.vmap(block_mask.mask_mod, in_dims=(None, None, None, 0))
    by_query = torch.vmap(by_key, in_dims=(None, None, 0, None))
    arguments = (*(np.array(x) for x in head), queries, keys)
    device = block_mask.kv_indices.device
    pairs: Bools = by_query(*(torch.tensor(x, device=device) for x in arguments)).cpu().numpy()
    return pairs


def _table(block_mask: BlockMask, kind: str) -> Bools:
    """Returns True for the partial ("") or full ("full_") blocks: [batch, heads, rows, columns]."""
    table = np.zeros(block_mask.kv_indices.shape, np.bool_)
    counts, columns = (
        getattr(block_mask, f"{kind}kv_{name}") for name in ("num_blocks", "indices")
    )
    if counts is not None:
        is_present = np.arange(table.shape[-1]) < counts.cpu().numpy()[..., None]
        np.put_along_axis(table, columns.cpu().numpy().astype(np.int64), is_present, axis=-1)
    return table
