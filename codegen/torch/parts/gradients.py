"""The backward pass as an operator of its own, and how autograd gets there."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.function import attend_shards, digest, group_named
from codegen.torch.parts.groups import groups_of


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    groups: Sequence[ProcessGroup],
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError


@torch.library.custom_op(f"ringloom::attention_backward_{digest}", mutates_args=())
def shard_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    return backward(dout, q, k, v, out, lse, groups_of(group_named(group)))


@shard_gradients.register_fake
def like_inputs(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, str], output: Sequence[Tensor]) -> None:
    """Keep what the backward pass needs."""
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, dout: Tensor, _: None) -> tuple[Tensor | None, ...]:
    """The gradients of what `attend_shards` was called with."""
    return *shard_gradients(dout.contiguous(), *ctx.saved_tensors, ctx.group), None


attend_shards.register_autograd(differentiate, setup_context=save)
