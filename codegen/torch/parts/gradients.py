"""The backward pass as an operator of its own, and how autograd gets there."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.function import attend_shards, digest, group_named


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError


@torch.library.custom_op(f"ringloom::attention_backward_{digest}", mutates_args=())
def shard_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    return backward(dout, q, k, v, out, lse, group_named(group))


shard_gradients.register_fake(lambda dout, q, k, v, *_: tuple(map(torch.empty_like, (q, k, v))))


def save(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, dout: Tensor, _: None) -> tuple[Tensor | None, ...]:
    return *shard_gradients(dout.contiguous(), *ctx.saved_tensors, ctx.group), None


attend_shards.register_autograd(differentiate, setup_context=save)
