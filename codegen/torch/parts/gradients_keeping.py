"""The backward pass as an operator, where the forward pass keeps copies for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.function_keeping import attend_shards, digest, group_named


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    kept: Sequence[Tensor],
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError


@torch.library.custom_op(f"ringloom::attention_backward_{digest}", mutates_args=())
def shard_gradients(dout: Tensor, saved: list[Tensor], group: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, out, lse, *kept = saved
    return backward(dout, q, k, v, out, lse, kept, group_named(group))


shard_gradients.register_fake(lambda dout, saved, _: tuple(map(torch.empty_like, saved[:3])))


def save(ctx: Any, inputs: Sequence[Any], output: Sequence[Any]) -> None:
    *tensors, ctx.group = inputs
    out, lse, kept = output
    ctx.save_for_backward(*tensors, out, lse, *kept)
    ctx.mark_non_differentiable(lse, *kept)
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *shard_gradients(dout.contiguous(), [*ctx.saved_tensors], ctx.group), None


attend_shards.register_autograd(differentiate, setup_context=save)
