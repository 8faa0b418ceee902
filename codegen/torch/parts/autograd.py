"""Registers the shapes of results for compilers, and the backward pass for autograd."""

from typing import Any

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.merge import accum_dtype
from ringloom.codegen.torch.parts.stubs import backward, forward, group_named

V_HEAD_DIM = 1
BACKWARD = DYNAMIC = KEEPING = SINKS = True

if BACKWARD:

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.group, _, _, _ = inputs
        if DYNAMIC:
            ctx.tables = group_named(ctx.group)
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @backward.register_fake
    def like_inputs(dout: Tensor, saved: list[Tensor], _: str) -> list[Tensor]:
        """Return empty tensors shaped like the gradients."""
        return [*map(torch.empty_like, saved[: 4 if SINKS else 3])]

    forward.register_autograd(
        lambda ctx, douts: (
            *backward(douts[0].contiguous(), [*ctx.saved_tensors], ctx.group),
            *(None, None, None, None),
        ),
        setup_context=save,
    )

if not KEEPING:

    @forward.register_fake
    def like_results(q: Tensor, *_: Any) -> list[Tensor]:
        """Return empty tensors shaped like the results of a forward pass that keeps no copies."""
        out = q.new_empty((*q.shape[:3], V_HEAD_DIM))
        return [out, q[..., :1].to(accum_dtype(q), copy=True)]
