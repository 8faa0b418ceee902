"""Flash kernels of CUDA, whose bands end at the last row and column, and calls made for them."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.codegen.torch import write
from ringloom.planner.masks import Causal, Documents, Mask, Window
from ringloom.planner.workload import Workload
from strategies import any_workloads, schedules

torch = pytest.importorskip("torch")

from on_torch.test_kernels import (  # noqa: E402
    EXACT,
    SCALE,
    cut,
    dense,
    flash_sees,
    kernels,
    windows,
)
from on_torch.test_tables import CASES, HEADS, both, program_of  # noqa: E402
from rank_threads import assert_exact, load  # noqa: E402
from ringloom.codegen.torch.parts.merge import merge  # noqa: E402  only where torch is


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (kernels, windows):
        monkeypatch.setattr(part, "SCALE", SCALE)


class OnGpu(torch.Tensor):  # type: ignore[misc]
    """Numbers in float64 that are taken for those of a GPU in 16 bit."""

    is_cpu = False

    def element_size(self) -> int:
        return 2


def scores_of_flash(
    q: Any, k: Any, causal: bool, scale: float, window_size_left: int, window_size_right: int
) -> Any:
    """Scores [batch, heads, rows, columns] of what flash operators get, of a causal mask or not."""
    seen = flash_sees(q.shape[1], k.shape[1], window_size_left, 0 if causal else window_size_right)
    return (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * scale).masked_fill(~seen, -torch.inf)


class Flash:
    """The flash operators of GPUs as they are documented, and how often they were called."""

    calls = 0

    def _flash_attention_forward(self, q: Any, k: Any, v: Any, *rest: Any, **how: Any) -> Any:
        assert rest[:5] == (None, None, q.shape[1], k.shape[1], 0.0)
        self.calls += 1
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        scores = scores_of_flash(q, k, rest[5], **(NO_WINDOW | how))
        out = scores.softmax(-1) @ v.transpose(1, 2)
        return out.transpose(1, 2), scores.logsumexp(-1), None, None, None

    def _flash_attention_backward(
        self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, **how: Any
    ) -> Any:
        assert rest[:5] == (None, None, q.shape[1], k.shape[1], 0.0)
        heads = k.shape[2]
        k, v = (x.repeat_interleave(q.shape[2] // heads, 2) for x in (k, v))
        p = (scores_of_flash(q, k, rest[5], **(NO_WINDOW | how)) - lse[..., None]).exp()
        q, k, v, dout, out = (x.transpose(1, 2) for x in (q, k, v, dout, out))
        ds = p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * how["scale"]
        dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in (ds.mT @ q, p.mT @ dout))
        return tuple(x.transpose(1, 2) for x in (ds @ k, dk, dv))

    def _scaled_dot_product_flash_attention(
        self, q: Any, k: Any, v: Any, dropout: float, causal: bool, **how: Any
    ) -> Any:
        qkv = (x.transpose(1, 2) for x in (q, k, v))
        rest = None, None, q.shape[2], k.shape[2], dropout, causal, False
        out, *others = self._flash_attention_forward(*qkv, *rest, **how)
        return out.transpose(1, 2), *others

    def _scaled_dot_product_flash_attention_backward(self, *given: Any, **how: Any) -> Any:
        inputs, rest = (x.transpose(1, 2) for x in given[:5]), given[6:]
        grads = self._flash_attention_backward(*inputs, given[5], *rest, **how)
        return tuple(x.transpose(1, 2) for x in grads)


NO_WINDOW = {"window_size_left": -1, "window_size_right": -1}


@given(
    st.integers(1, 3),
    st.integers(0, 30),
    st.none() | st.integers(0, 30),
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
)
def test_a_window_is_one_call_of_flash_and_exact(
    step: int, left: int, right: int | None, ends: list[int]
) -> None:
    work = Workload(seq=60, heads=4, kv_heads=2, head_dim=8, mask=Window(left, right))
    queries, keys = (range(*sorted(x), step) for x in (ends[:2], ends[2:]))
    calls, flash = cut(work, queries, keys, late=True, whole=True), Flash()
    assert len(calls) <= 1 + 2 * (len(queries) > len(keys))
    assert_flash_is_exact(windows, flash, work, (queries, keys), calls)


@given(
    st.integers(1, 3),
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.sampled_from([Causal(), Causal() & Documents((20, 40))]),
    st.booleans(),
)
def test_causal_calls_of_flash_end_at_the_last_row_and_column(
    step: int, ends: list[int], mask: Mask, windowed: bool
) -> None:
    work = Workload(seq=60, heads=4, kv_heads=2, head_dim=8, mask=mask)
    queries, keys = (range(*sorted(x), step) for x in (ends[:2], ends[2:]))
    part, calls = windows if windowed else kernels, cut(work, queries, keys, late=True)
    assert_flash_is_exact(part, Flash(), work, (queries, keys), calls)


def assert_flash_is_exact(
    part: Any, flash: "Flash", work: Workload, sides: tuple[range, ...], calls: list[Any]
) -> None:
    """Fails unless calls of flash operators give attention and gradients."""
    queries, keys = sides
    random = torch.Generator().manual_seed(0)
    sizes = (4, len(queries)), (2, len(keys)), (2, len(keys)), (4, len(queries))
    whole = [torch.randn(2, *x, 8, dtype=torch.float64, generator=random) for x in sizes]
    q, k, v = (x.clone().requires_grad_() for x in whole[:3])
    out, lse = dense(q, k, v, work.allowed(np.array(queries, int), np.array(keys, int)))
    out.backward(whole[3])
    truth = out.detach(), lse.detach(), *(x.grad for x in (q, k, v))
    result = torch.zeros_like(whole[0]), torch.full_like(whole[0][..., :1], -torch.inf)
    grads = [torch.zeros_like(x) for x in whole[:3]]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(part, "aten", flash)
        q, k, v, dout = (x.as_subclass(OnGpu) for x in whole)
        for rows, cols, band in calls:
            given = q[:, :, rows], k[:, :, cols], v[:, :, cols]
            own = [x.as_subclass(torch.Tensor) for x in part.attend(*given, band)]
            merge(*(x[:, :, rows] for x in result), *own)
        for rows, cols, band in calls:
            ours = [x[:, :, rows] for x in (dout, q, *(x.as_subclass(OnGpu) for x in result))]
            shares = part.attend_backward(*ours, k[:, :, cols], v[:, :, cols], band)
            for grad, share, at in zip(grads, shares, (rows, cols, cols), strict=True):
                grad[:, :, at] += share.as_subclass(torch.Tensor)
    assert flash.calls == len(calls)
    for own, wanted in zip((*result, *grads), truth, strict=True):
        torch.testing.assert_close(own, wanted, rtol=0, atol=EXACT)


# ---- tables


@CASES
@given(st.data(), st.integers(1, 6), any_workloads())
def test_plans_run_exactly_where_kernels_count_from_the_last_row(
    data: st.DataObject, ranks: int, work: Workload
) -> None:
    plans = both(data.draw(schedules(ranks)), work, ranks)
    program = load(write(program_of(plans)))
    counting_from_end(program)
    assert_exact(program, plans)


def test_late_queries_are_one_call_where_kernels_count_from_the_last_row() -> None:
    plans = both("allgather:layout=contiguous", Workload(seq=32, mask=Causal(), **HEADS))
    program = load(write(program_of(plans)))
    late = counting_from_end(program)
    assert_exact(program, plans)
    assert late == {8, 16, 24}


def counting_from_end(program: ModuleType) -> set[int]:
    """Gives a program kernels that count causal rows from the last one, made of its own.

    Returns the numbers of keys before the first query that they will have been called with.
    """
    attend, attend_backward, late = program.attend, program.attend_backward, set[int]()

    def before(q: Any, k: Any, band: Any) -> int:
        many: int = k.shape[2] - q.shape[2] if band is True else 0
        late.update([many] * (many > 0))
        return many

    def forward(q: Any, k: Any, v: Any, band: Any) -> Any:
        if not (many := before(q, k, band)):
            return attend(q, k, v, band)
        out, lse = attend(q, k[:, :, :many], v[:, :, :many], False)
        program.merge(out, lse, *attend(q, k[:, :, many:], v[:, :, many:], True))
        return out, lse

    def backward(*given: Any) -> Any:
        *queries, k, v, band = given
        if not (many := before(queries[1], k, band)):
            return attend_backward(*given)
        full = attend_backward(*queries, k[:, :, :many], v[:, :, :many], False)
        causal = attend_backward(*queries, k[:, :, many:], v[:, :, many:], True)
        sides = zip(full[1:], causal[1:], strict=True)
        return full[0] + causal[0], *(torch.cat(x, 2) for x in sides)

    own: Any = program
    own.attend, own.attend_backward = forward, backward
    own.counts_from_end = lambda *_: True
    return late
