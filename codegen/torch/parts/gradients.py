"""The way of autograd to the backward pass."""

from typing import Any

import torch

from codegen.torch.parts.stubs import backward, forward, group_named

DYNAMIC = SINKS = True


def save(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.group, _, _, _ = inputs
    if DYNAMIC:
        ctx.tables = group_named(ctx.group)
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


backward.register_fake(lambda dout, saved, _: [*map(torch.empty_like, saved[: 4 if SINKS else 3])])
forward.register_autograd(
    lambda ctx, douts: (
        *backward(douts[0].contiguous(), [*ctx.saved_tensors], ctx.group),
        *(None, None, None, None),
    ),
    setup_context=save,
)
