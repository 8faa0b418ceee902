"""Audits of functions that are right for inputs as tests make them, and wrong for others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError
from ringloom.planner.workload import Workload
from ringloom.runtimes.audit.running.launching import load_function

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


class Raises(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise KeyError("no such")


@pytest.mark.parametrize(
    ("attend", "kind", "pass_", "said"),
    [
        (lambda q, k, v: None, "wrong shape", "forward", "returned None instead"),
        (lambda q, k, v: {"out": q}, "wrong shape", "forward", "returned a dict instead"),
        (lambda q, k, v: Raises.apply(v), "crash", "backward", "KeyError: 'no such'"),
    ],
)
def test_calls_without_results_are_told_in_words(
    attend: Callable[..., Any], kind: str, pass_: str, said: str
) -> None:
    (fault,) = rl.audit(attend, WORK).faults
    assert (fault.kind, fault.pass_) == (kind, pass_)
    assert said in fault.sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [("def f(:", "SyntaxError: .*line 1"), ("A = {}\nA['b']", "KeyError: 'b', at line 2 of .*py")],
)
def test_an_error_at_import_keeps_its_kind_and_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(RingloomError, match=said):
        load_function(f"{tmp_path}/wrong.py:attend")
