"""Attention of shards as one registered operator, which keeps copies for the backward pass."""

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.merge import wide

Kept = tuple[Tensor, Tensor, list[Tensor]]


def forward(q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup) -> Kept:
    raise NotImplementedError


def kept_like(q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup) -> list[Tensor]:
    raise NotImplementedError


# ---- Operators: one for compilers and checkpoint policies, and one for its gradients.

group_named: Any = dist.distributed_c10d._resolve_process_group
digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def attend_shards(
    q: Tensor, k: Tensor, v: Tensor, group: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    return forward(q, k, v, group_named(group))


def results_like(
    q: Tensor, k: Tensor, v: Tensor, group: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    kept = kept_like(q, k, v, group_named(group))
    return torch.empty_like(q), torch.empty_like(q[..., :1], dtype=wide(q)), kept


operator = torch.library.custom_op(f"ringloom::attention_{digest}", attend_shards, mutates_args=())
operator.register_fake(results_like)
