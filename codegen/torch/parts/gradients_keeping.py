"""The backward pass as an operator, where the forward pass keeps copies for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from codegen.torch.parts.function_keeping import digest, group_named, operator


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


def shard_gradients(dout: Tensor, saved: list[Tensor], group: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, out, lse, *kept = saved
    return backward(dout, q, k, v, out, lse, kept, group_named(group))


gradients = torch.library.custom_op(
    f"ringloom::attention_backward_{digest}", shard_gradients, mutates_args=()
)
gradients.register_fake(lambda dout, saved, _: tuple(map(torch.empty_like, saved[:3])))


def save(ctx: Any, inputs: Sequence[Any], output: Sequence[Any]) -> None:
    *tensors, ctx.group = inputs
    out, lse, kept = output
    ctx.save_for_backward(*tensors, out, lse, *kept)
    ctx.set_materialize_grads(False)


operator.register_autograd(
    lambda ctx, dout, *_: (*gradients(dout.contiguous(), [*ctx.saved_tensors], ctx.group), None),
    setup_context=save,
)
