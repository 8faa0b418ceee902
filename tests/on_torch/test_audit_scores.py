"""Audits of large scores, odd scales and small factors, of a dense attention that is changed."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringloom.planner.workload import Workload
from ringloom.runtimes.audit import Case, Report, audit_rank

torch = pytest.importorskip("torch")

TOKENS = 32


def work(dtype: str = "float32", **sizes: Any) -> Workload:
    return Workload(TOKENS, **{"heads": 2, "head_dim": 16, "dtype": dtype} | sizes)


def dense(
    attention: Workload,
    softmax: Callable[[Any], Any] = lambda s: s.softmax(-1),
    change: Callable[[Any], Any] = lambda s: s,
    forbidden: float = -np.inf,
) -> Callable[..., Any]:
    """A dense attention in float32 whose scores are changed, or its softmax."""
    mask = torch.from_numpy(np.asarray(attention.allowed(range(TOKENS), range(TOKENS))))

    def attend(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).float() for x in (k, v))
        scores = change(q.float() @ k.mT * attention.softmax_scale)
        p = softmax(torch.where(mask, scores, scores + forbidden))
        return (p @ v).to(q.dtype)

    return attend


def naive(scores: Any) -> Any:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def audited(attend: Callable[..., Any], attention: Workload, passes: str = "both") -> Report:
    report = audit_rank(attend, Case(attention, 1, (np.arange(TOKENS),), passes=passes))
    assert report.could_not_run is None
    return report


def kinds(report: Report) -> set[str]:
    return {fault.kind for fault in report.faults}


def told(report: Report) -> str:
    """Returns the first sentence of a verdict with one kind of fault."""
    assert len(kinds(report)) == 1
    return report.faults[0].sentence


@pytest.mark.parametrize("mask", ["causal", "window:4,4", "full"])
def test_a_softmax_without_its_maximum_overflows(mask: str) -> None:
    attention = work(mask=mask)
    assert kinds(audited(dense(attention, naive), attention)) == {"overflow"}


@pytest.mark.parametrize(
    "changed",
    [
        {"change": lambda s: s.clamp(-50, 50)},
        {"change": lambda s: 50 * torch.tanh(s / 50)},
        {"forbidden": -50.0},
        {"forbidden": -100.0},
    ],
    ids=["clamped", "capped", "-50", "-100"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_scores_that_are_changed_are_seen(changed: dict[str, Any], dtype: str) -> None:
    attention = work(dtype)
    said = told(audited(dense(attention, **changed), attention))
    assert "scores up to 128" in said
    assert "NaN" not in said


@pytest.mark.parametrize("values", [1, 2])
def test_narrow_values_show_large_scores(values: int) -> None:
    attention = work(v_head_dim=values)
    assert audited(dense(attention), attention, "forward").exact
    wrong = dense(attention, forbidden=-50.0)
    assert kinds(audited(wrong, attention, "forward")) == {"wrong weights"}


def with_gradients(
    ahead: Callable[..., Any],
    behind: Callable[..., Any],
    after: Callable[[Any], Any] = lambda x: x,
) -> Callable[..., Any]:
    """An attention whose backward pass is that of another one, and what becomes of gradients."""

    class Function(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, *leaves: Any) -> Any:
            context.save_for_backward(*leaves)
            return ahead(*leaves)

        @staticmethod
        def backward(context: Any, dout: Any) -> Any:
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in context.saved_tensors]
                grads = torch.autograd.grad(behind(*leaves), leaves, dout)
            return tuple(map(after, grads))

    return lambda q, k, v: Function.apply(q, k, v)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_large_scores_overflow(dtype: str) -> None:
    attention = work(dtype)
    right = dense(attention)
    said = told(audited(with_gradients(right, dense(attention, naive)), attention))
    assert "NaN or infinite for scores up to 128" in said
    assert audited(with_gradients(right, right), attention).exact


def test_gradients_that_are_not_finite_are_no_mask() -> None:
    attention = work()
    right = dense(attention)
    report = audited(with_gradients(right, right, lambda x: x * np.nan), attention)
    assert kinds(report) == {"not finite"}
    assert "NaN" in report.faults[0].sentence


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [0.0, -0.25, 1e-6, 1e-4, 1e-3, 8.0])
def test_odd_scales_raise_no_alarm(scale: float, dtype: str) -> None:
    attention = work(dtype, scale=scale, heads=4, kv_heads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert audited(dense(attention), attention).exact


def test_weights_of_one_rank_are_no_partials() -> None:
    attention = work("bfloat16")
    apart = np.arange(TOKENS)[:, None] - np.arange(TOKENS)
    sloped = dense(attention, change=lambda s: s - 0.01 * torch.from_numpy(apart).float().abs())
    said = told(audited(sloped, attention))
    assert "partial" not in said
    assert "once instead of once" not in said


def test_an_output_that_is_too_large_is_of_no_other_head() -> None:
    attention = work("bfloat16")
    said = told(audited(lambda *x: dense(attention)(*x) * 1.05, attention, "forward"))
    assert "sum to 1.04" in said  # 1.05 in bfloat16


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_gradient_that_is_a_little_too_large_is_seen(name: str) -> None:
    """By 5 percent, which single numbers of bfloat16 do not show."""
    attention = work("bfloat16", heads=4, kv_heads=2)

    class Larger(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient * 1.05

    def attend(**leaves: Any) -> Any:
        return dense(attention)(**leaves | {name: Larger.apply(leaves[name])})

    report = audited(lambda q, k, v: attend(q=q, k=k, v=v), attention)
    assert kinds(report) == {"gradient scaled"}
    assert "x that of dense attention" in report.faults[0].sentence


def rounded(attention: Workload) -> Callable[..., Any]:
    """A dense attention whose every step is rounded to 16 bits."""
    mask = torch.from_numpy(np.asarray(attention.allowed(range(TOKENS), range(TOKENS))))

    def attend(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = (q @ k.mT * attention.softmax_scale).masked_fill(~mask, -np.inf)
        return scores.softmax(-1) @ v

    return attend


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mask", ["causal", "window:4", "full"])
def test_right_results_of_16_bits_have_no_factor(dtype: str, mask: str) -> None:
    attention = work(dtype, mask=mask, heads=4, kv_heads=2, batch=2)
    for right in (dense(attention), rounded(attention)):
        report = audited(right, attention)
        assert report.exact, report.faults
        for error in report.errors.values():
            assert abs(error.factor - 1) <= error.slack / 2 < 0.05
