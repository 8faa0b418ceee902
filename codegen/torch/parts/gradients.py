"""The backward pass as an operator of its own, and how autograd gets there."""

from typing import Any

import torch
from torch import Tensor

from codegen.torch.parts.function import digest, group_named, operator
from codegen.torch.parts.stubs import backward


@torch.library.custom_op(f"ringloom::attention_backward_{digest}", mutates_args=())
def gradients(dout: Tensor, saved: list[Tensor], group: str) -> list[Tensor]:
    return [*backward(*[dout, *saved, group_named(group)])]


def save(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.group = inputs
    ctx.tables = group_named(ctx.group)  # given
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


gradients.register_fake(lambda dout, saved, _: [*map(torch.empty_like, saved[:3])])  # sinkless
gradients.register_fake(lambda dout, saved, _: [*map(torch.empty_like, saved[:4])])  # sinks
operator.register_autograd(
    lambda ctx, douts: (*gradients(douts[0].contiguous(), [*ctx.saved_tensors], ctx.group), None),
    setup_context=save,
)
