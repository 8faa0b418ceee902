"""Wraps attention of other torch libraries as functions of local shards.

Each library is imported when its function is called. The code here only arranges axes.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ringloom.planner.errors import RingloomError, unknown

Attend = Callable[..., Any]
TEMPLATE = "torch.distributed.tensor.experimental._context_parallel._attention"
EXCHANGES = "all-gather", "all-to-all"


def flash_shaped(function: Attend, **options: Any) -> Attend:
    """Wraps a function of [batch, tokens, heads, head_dim], such as flash-attn's, as `attend`."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        out = function(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return attend


def ring_attention_pytorch(striped: bool, causal: bool, bucket: int) -> Attend:
    """Returns the ring of the package ring-attention-pytorch."""
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    options = {"bucket_size": bucket, "ring_reduce_col": True, "striped_ring_attn": striped}
    return flash_shaped(ring_flash_attn, causal=causal, **options)


def pytorch_ring(balanced: bool, causal: bool, exchange: str) -> Attend:
    """Returns PyTorch's ring template, with the flash attention of the device as its kernel."""
    if exchange not in EXCHANGES:
        raise RingloomError(unknown("exchange", exchange, EXCHANGES))

    def attend(q: Any, k: Any, v: Any, group: Any = None) -> Any:
        return Template.apply(q, k, v, group or dist.group.WORLD, causal, balanced, exchange)

    return attend


class Template(torch.autograd.Function):  # type: ignore[misc]
    """A differentiable function of PyTorch's forward and backward templates."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, *settings: Any) -> Any:
        """Returns the attention of local shards; settings: group, causal, balanced, exchange."""
        ring, (group, causal, *_) = template(*settings[2:]), settings
        op = _forward if q.device.type == "cpu" else _forward_on_gpu
        out, lse, *extras = ring._templated_ring_attention(group, 2, op, q, k, v, is_causal=causal)
        ctx.settings, ctx.extras = settings, extras
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        """Returns the gradients of local shards."""
        q, k, v, out, lse = ctx.saved_tensors
        group, causal, *_ = ctx.settings
        ring, extras = template(*ctx.settings[2:]), dict[str, Any]()
        op: Attend = _backward
        if q.device.type != "cpu":
            op, names = _backward_on_gpu, ("cum_seq_q", "cum_seq_k", "max_q", "max_k")
            extras = dict(zip((*names, "philox_seed", "philox_offset"), ctx.extras, strict=False))
        grads = ring._templated_ring_attention_backward(
            group, 2, op, dout.contiguous(), "grad_out", q, k, v, out, lse, causal, **extras
        )
        return *grads[:3], None, None, None, None


def template(balanced: bool, exchange: str) -> Any:
    """Returns PyTorch's ring attention module, configured with these settings."""
    from importlib import import_module

    ring = import_module(TEMPLATE)
    ring._cp_options.rotate_method = ring._RotateMethod[exchange.upper().replace("-", "_")]
    ring._cp_options.enable_load_balance = balanced
    return ring


def _forward(query: Any, key: Any, value: Any, is_causal: bool, **_: Any) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return op(query, key, value, 0.0, is_causal)


def _backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    is_causal: bool,
    **_: Any,
) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return op(grad_out, query, key, value, out, logsumexp.contiguous(), 0.0, is_causal)


def _forward_on_gpu(query: Any, key: Any, value: Any, is_causal: bool, **more: Any) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention
    return op(query, key, value, is_causal=is_causal, **more)


def _backward_on_gpu(**inputs: Any) -> Any:
    inputs["logsumexp"] = inputs["logsumexp"].contiguous()
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(dropout_p=0.0, **inputs)


def transformers(program: Any, name: str) -> Attend:
    """Wraps an emitted program, which is called through the adapter for Transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from ringloom.runtimes.huggingface import register

    register(program, name, None, any_mask=True, any_positions=True)

    function: Any = ALL_ATTENTION_FUNCTIONS[name]
    module = SimpleNamespace(is_causal=True, training=False)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return function(module, q, k, v, None)[0].transpose(1, 2)

    return attend
