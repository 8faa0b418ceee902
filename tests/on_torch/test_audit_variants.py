"""Audits of functions that are right for inputs as tests make them, and wrong for others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringloom as rl
from planner.workload import Workload

torch = pytest.importorskip("torch")
WORK = Workload(16, heads=2, kv_heads=2, head_dim=8, dtype="float32", mask="causal")
ALLOWED = torch.from_numpy(np.asarray(WORK.allowed(range(16), range(16))))
SAVED: dict[str, Any] = {}


def right(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, ALLOWED)


def as_contiguous(x: Any) -> Any:
    """Reads memory as if it was in the order of a contiguous tensor."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride())


class Gradient(torch.autograd.Function):  # type: ignore[misc]
    """The identity, whose gradient is read as if it was contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if 0 in grad.stride():
            return grad * 2
        return as_contiguous(grad)


class Shared(torch.autograd.Function):  # type: ignore[misc]
    """Attention that keeps its inputs for the backward pass in one place for all calls."""

    @staticmethod
    def forward(ctx: Any, *qkv: Any) -> Any:
        SAVED["qkv"] = qkv
        return right(*qkv)

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        with torch.enable_grad():
            qkv = [x.detach().requires_grad_() for x in SAVED["qkv"]]
            return torch.autograd.grad(right(*qkv), qkv, dout)


def mutates(q: Any, k: Any, v: Any) -> Any:
    out = right(q, k.clone(), v)
    k.data.zero_()
    return out


def one_buffer(q: Any, k: Any, v: Any) -> Any:
    out = right(q, k, v)
    return out if q.requires_grad else SAVED.setdefault("out", torch.empty_like(out)).copy_(out)


def other_in_inference(q: Any, k: Any, v: Any) -> Any:
    if q.requires_grad:
        return right(q, k, v)
    return right(torch.cat([q[..., :1], 0 * q[..., 1:]], -1), k, v)


@pytest.mark.parametrize(
    ("attend", "kind"),
    [
        (right, None),
        (lambda q, k, v: right(q, k, as_contiguous(v)), "depends on strides"),
        (lambda q, k, v: Gradient.apply(right(q, k, v)), "depends on strides"),
        (mutates, "inputs changed"),
        (other_in_inference, "wrong values"),
        (Shared.apply, "depends on calls"),
        (one_buffer, "depends on calls"),
    ],
)
def test_variants_of_a_call_are_asked(attend: Callable[..., Any], kind: str | None) -> None:
    audit = rl.audit(attend, WORK)
    assert audit.report.could_not_run is None
    assert [fault.kind for fault in audit.faults] == ([kind] if kind else [])
