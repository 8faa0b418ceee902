"""Cuts whole tensors into shards, one for each rank, and joins shards again."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.stubs import kv_positions, positions

RANKS = 1
APART = True


def shard(x: Tensor, rank: int, axis: int = 2, side: str = "q") -> Tensor:
    """Return a rank's shard of a whole tensor; side: "q", or "kv" for keys and values."""
    seq = x.shape[axis]
    local = kv_positions(rank, seq) if APART and side == "kv" else positions(rank, seq)
    return x.index_select(axis, local.to(x.device))


def unshard(parts: Iterable[Tensor], axis: int = 2, side: str = "q") -> Tensor:
    """Return the whole tensor in sequence order, from the shards of all ranks."""
    whole, ranks = torch.cat(list(parts), axis), range(RANKS)
    seq = whole.shape[axis]
    order = [kv_positions(n, seq) if APART and side == "kv" else positions(n, seq) for n in ranks]
    return whole.index_select(axis, torch.cat(order).argsort().to(whole.device))
