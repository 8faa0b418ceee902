"""Kernel modules of torch programs: exact on CPUs, and of the right shapes on CUDA's branches."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.codegen.frame.assemble import Part
from ringloom.codegen.torch.parts import bands
from ringloom.planner.masks import Window
from ringloom.planner.partitions import shift_ranges
from ringloom.planner.workload import Workload
from strategies import masks

torch = pytest.importorskip("torch")

from ringloom.codegen.torch.parts.merge import merge  # noqa: E402  only where torch is
from ringloom.codegen.torch.parts.visitors import with_output  # noqa: E402

SCALE = 0.4
EXACT = 1e-12


def kernels_of(*chosen: str) -> ModuleType:
    """The kernels of programs that make some choices."""
    module = ModuleType(f"kernels_{'_'.join(chosen)}")
    choices = "WINDOWS", "GROUPED", "ANY_LENGTH", "UNEQUAL"
    made = {name: name in chosen for name in choices} | {"SIGNED": True}
    exec(Part("torch/parts/kernels").text(made), module.__dict__)
    return module


kernels, windows = kernels_of("GROUPED"), kernels_of("WINDOWS", "GROUPED")
ungrouped = [kernels_of(), kernels_of("WINDOWS")]
of_any_length = kernels_of("GROUPED", "ANY_LENGTH")


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (kernels, windows):
        monkeypatch.setattr(part, "SCALE", SCALE)


def cut(
    work: Workload, queries: range, keys: range, late: bool = False, whole: bool = False
) -> list[Any]:
    """The kernel calls of a rectangle, by the part with this workload's constants."""
    (aligned,) = shift_ranges((queries,), work.offset)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bands, "BOXES", tuple(map(tuple, work.mask.region().pieces.tolist())))
        bands.tiles.cache_clear()
        return bands.tiles((aligned,), (keys,), late, whole)


def dense(q: Any, k: Any, v: Any, allowed: Any) -> tuple[Any, Any]:
    """Output and log-sum-exp by definition; 0 and -inf for rows that see nothing."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * SCALE).masked_fill(~torch.from_numpy(allowed), -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v, torch.logsumexp(scores, -1, keepdim=True)


@st.composite
def rectangles(draw: st.DrawFn) -> tuple[Workload, range, range]:
    """A workload, and some of its queries and keys, as far apart."""
    seq, kv_seq, step = (draw(st.integers(1, most)) for most in (40, 40, 4))
    work = Workload(seq=seq, kv_seq=kv_seq, heads=4, kv_heads=2, mask=draw(masks(seq, kv_seq)))
    ends = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in (seq, kv_seq)]
    return work, *(range(first, last, step) for first, last in ends)


def seen(call: Any, shape: tuple[int, int]) -> Any:
    """The pairs that one call computes, each counted."""
    rows, cols, band = call
    count = np.zeros(shape, np.int64)
    ahead = (
        np.arange(len(range(*cols.indices(shape[1]))))
        - np.arange(len(range(*rows.indices(shape[0]))))[:, None]
    )
    lo, hi = (-100, 0 if band else 100) if isinstance(band, bool) else band
    count[rows, cols] = (lo <= ahead) & (ahead <= hi)
    assert ahead.size, "an empty call kills the process on CPUs"
    assert count[rows, cols].any(axis=1).all(), "a row of the call sees nothing"
    if band is True:
        assert ahead.shape[0] == ahead.shape[1]
    elif not isinstance(band, bool):
        gap = ahead.shape[1] - ahead.shape[0]
        assert lo <= gap <= hi, "the last row does not see the last column"
    return count


@given(rectangles())
def test_the_calls_of_a_rectangle_compute_each_allowed_pair_once(
    rectangle: tuple[Workload, range, range],
) -> None:
    work, queries, keys = rectangle
    at = np.array(queries, int), np.array(keys, int)
    allowed = work.allowed(*at)
    total = sum((seen(call, allowed.shape) for call in cut(*rectangle)), np.zeros(allowed.shape))
    np.testing.assert_array_equal(total, allowed)


@given(rectangles(), st.booleans(), st.sampled_from([1, 0, -1]))
def test_calls_of_every_mask_merge_to_dense_attention(
    rectangle: tuple[Workload, range, range], travelled: bool, sign: int
) -> None:
    work, queries, keys = rectangle
    at = np.array(queries, int), np.array(keys, int)
    random = torch.Generator().manual_seed(0)
    whole = [
        torch.randn(2, heads, len(n), 8, dtype=torch.float64, generator=random)
        for heads, n in ((4, at[0]), (2, at[1]), (2, at[1]), (4, at[0]))
    ]
    q, k, v = (x.clone().requires_grad_() for x in whole[:3])
    out, lse = dense(q * sign, k, v, work.allowed(*at))
    out.backward(whole[3])
    result = torch.zeros_like(whole[0]), torch.full_like(whole[0][..., :1], -torch.inf)
    grads = [torch.zeros_like(x) for x in whole[:3]]
    windowed = any(piece[4] > -(2**39) for piece in work.mask.region().pieces)
    part: Any = windows if windowed else kernels
    q, k, v, dout = whole
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(part, "SIGN", sign)
    for rows, cols, band in cut(*rectangle):
        subset = part.attend(q[:, :, rows], k[:, :, cols], v[:, :, cols], band)
        merge(*(x[:, :, rows] for x in result), *subset)
    delta = (dout * result[0]).sum(-1, keepdim=True)
    last = with_output([dout, q, result[1], delta])[2] if travelled else result[0]
    for rows, cols, band in cut(*rectangle):
        queries, keys = (dout, q, last, result[1]), (k, v)
        cuts = [x[:, :, rows] for x in queries] + [x[:, :, cols] for x in keys]
        shares = part.attend_backward(*cuts, band)
        for grad, share, at in zip(grads, shares, (rows, cols, cols), strict=True):
            grad[:, :, at] += share
    monkeypatch.undo()
    for own, truth in zip((*result, *grads), (out, lse, *(x.grad for x in (q, k, v))), strict=True):
        if truth is not None:
            torch.testing.assert_close(own, truth.detach(), rtol=0, atol=EXACT)


@pytest.mark.parametrize(("kind", "least"), [(torch.float32, 1e-30), (torch.float64, 1e-300)])
def test_a_stand_in_for_the_output_has_its_product_with_dout(kind: Any, least: float) -> None:
    dout = torch.randn(3, 5, 8, dtype=kind, generator=torch.Generator().manual_seed(0))
    dout[0] *= least
    dout[1, 2] = 0
    delta = dout.sum(-1, keepdim=True) * 2
    made = with_output([dout, dout, delta, delta])[2]
    torch.testing.assert_close((made * dout).sum(-1, keepdim=True), delta, rtol=1e-5, atol=0)


def flash_sees(rows: int, cols: int, left: int, right: int) -> Any:
    """The pairs that flash kernels on CUDA compute: bounds from the last row and column on.

    A bound of as many columns as there are is none, and neither is a negative one, which beside
    another bound stands for the number of columns.
    """
    ahead = torch.arange(cols) - torch.arange(rows)[:, None] - (cols - rows)
    ends = [-1 if x >= cols else x for x in (left, right)]
    if max(ends) < 0:
        return torch.ones_like(ahead, dtype=torch.bool)
    left, right = (cols if x < 0 else x for x in ends)
    return (ahead >= -left) & (ahead <= right)


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_bands_on_cuda_are_bounds_that_flash_keeps_or_masks(
    rows: int, cols: int, data: st.DataObject
) -> None:
    lo = data.draw(st.integers(-rows, cols - rows), "lo")  # the last row sees a column
    hi = data.draw(st.integers(max(lo, 0, cols - rows), cols), "hi")  # the first row, the last one
    ahead = torch.arange(cols) - torch.arange(rows)[:, None]
    wanted = (ahead >= lo) & (ahead <= hi)
    q, k = (torch.zeros(1, 2, n, 4, dtype=torch.bfloat16) for n in (rows, cols))
    causal, mask, how = windows.band_arguments(q, k, (lo, hi))
    assert not causal
    if mask is None:
        seen = flash_sees(rows, cols, how["window_size_left"], how["window_size_right"])
    else:
        assert mask.dtype == q.dtype
        seen = mask[0, 0] == 0
    assert torch.equal(seen, wanted)
    assert (mask is None) == (rows <= cols or hi < min(cols - 1, 2 * cols - rows))


def test_a_long_window_is_cut_into_strips() -> None:
    work = Workload(seq=2500, heads=1, mask=Window(40, 7))
    calls = cut(work, range(2500), range(2500))
    np.testing.assert_array_equal(
        sum(seen(call, (2500, 2500)) for call in calls), work.allowed(range(2500), range(2500))
    )
    assert len(calls) == 3


# ---- CUDA's branches, on tensors without data


FORMS: list[tuple[Any, Any, int, int]] = [
    *((part, True, 100, 100) for part in ungrouped),
    (kernels, False, 100, 64),
    (kernels, True, 100, 100),
    (kernels, True, 64, 100),
    (windows, False, 100, 64),
    (windows, True, 100, 100),
    (windows, True, 64, 100),
    (windows, (-20, 0), 100, 100),
    (windows, (-600, 30), 1200, 700),
    (windows, (-600, 300), 1200, 700),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("part", "band", "rows", "cols"), FORMS)
def test_cuda_branches_give_the_shapes_and_types_of_their_inputs(
    part: Any, band: Any, rows: int, cols: int, dtype: Any
) -> None:
    q, dout = (torch.empty(2, 8, rows, 64, dtype=dtype, device="meta") for _ in range(2))
    heads = 8 if part in ungrouped else 2
    k, v = (torch.empty(2, heads, cols, 64, dtype=dtype, device="meta") for _ in range(2))
    out, lse = part.attend(q, k, v, band)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert (lse.shape, lse.dtype) == ((2, 8, rows, 1), torch.float32)
    grads = part.attend_backward(dout, q, out.float(), lse, k, v, band)
    assert [x.shape for x in grads] == [x.shape for x in (q, k, v)]
    assert {x.dtype for x in grads} <= {dtype, torch.float32}


def test_kernels_of_gpus_in_16_bit_take_windows_as_an_argument() -> None:
    kinds = ("meta", torch.bfloat16), ("meta", torch.float32), ("cpu", torch.bfloat16)
    taken = [windows.takes_windows(torch.empty(1, device=on, dtype=x)) for on, x in kinds]
    assert taken == [True, False, False]


@pytest.mark.parametrize("backend", ["CUDNN_ATTENTION", "FLASH_ATTENTION"])
def test_flash_kernels_of_cuda_count_from_the_last_row(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = getattr(torch.nn.attention.SDPBackend, backend).value
    monkeypatch.setattr(
        of_any_length, "aten", SimpleNamespace(_fused_sdp_choice=lambda *_, **__: chosen)
    )
    kinds = ("meta", torch.bfloat16), ("meta", torch.float32), ("cpu", torch.bfloat16)
    ours = [[torch.empty(1, 1, 1, 8, device=on, dtype=x)] * 3 for on, x in kinds]
    assert [windows.counts_from_end(*x) for x in ours] == [True, False, False]
    assert [of_any_length.counts_from_end(*x) for x in ours] == [backend[0] == "F", False, False]
    monkeypatch.setattr(torch.version, "hip", "6.4")  # whose kernels count from the first
    assert not any(windows.counts_from_end(*x) for x in ours)


@pytest.mark.parametrize(
    ("rows", "cols", "band"), [(100, 64, False), (100, 100, True), (64, 100, True)]
)
@pytest.mark.parametrize("backend", ["CUDNN_ATTENTION", "FLASH_ATTENTION"])
def test_programs_of_any_length_attend_by_cudnn_where_torch_does(
    backend: str, rows: int, cols: int, band: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part: Any = of_any_length
    called = list[str]()

    class Noted:
        """The operators, which say that they were called."""

        def __getattr__(self, name: str) -> Any:
            if name == "_fused_sdp_choice":
                return lambda *_, **__: getattr(torch.nn.attention.SDPBackend, backend).value
            called.append(name)
            return getattr(torch.ops.aten, name)

    monkeypatch.setattr(part, "aten", Noted())
    for name in ("cudnn", "cudnn_backward"):
        kernel = getattr(part, name)
        noted = lambda *a, of=kernel, **how: called.append("cudnn") or of(*a, **how)  # noqa: E731
        monkeypatch.setattr(part, name, noted)
    q, dout = (torch.empty(2, 8, rows, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    k, v = (torch.empty(2, 2, cols, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    out, lse = part.attend(q, k, v, band)
    assert (out.shape, lse.shape) == (q.shape, (2, 8, rows, 1))
    grads = part.attend_backward(dout, q, out.float(), lse, k, v, band)
    assert [x.shape for x in grads] == [x.shape for x in (q, k, v)]
    assert len(called) == 2
    square = band is False or rows == cols  # cuDNN counts from the first row
    assert (set(called) == {"cudnn"}) == (square and backend == "CUDNN_ATTENTION")


def test_masked_kernels_read_the_output_one_row_of_all_heads_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = []

    def noted(
        dout: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, *rest: Any, **how: Any
    ) -> Any:
        read.append(out.stride())
        return q, k, v, None

    monkeypatch.setattr(windows, "efficient_backward", noted)
    q, k = (torch.empty(2, 8, n, 64, dtype=torch.bfloat16, device="meta") for n in (1200, 700))
    lse = torch.empty(2, 8, 1200, 1, device="meta")
    windows.attend_backward(q, q, q, lse, k, k, (-600, 300))
    assert read == [(1200 * 8 * 64, 64, 8 * 64, 1)]
