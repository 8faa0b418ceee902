"""Kernels of JAX programs: exact where they run, called where a program is lowered for them."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh, jax
from repository import ROOT
from ringloom.codegen import emit
from ringloom.codegen.frame.assemble import assemble
from ringloom.codegen.jax import kernels
from ringloom.planner.kernel_calls import Call
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import distance
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.hardware import hardware

jnp = jax.numpy
P = jax.sharding.PartitionSpec
SCALE = 0.3
PARTS = "kernels_cpu", "kernels_gpu", "kernels_tpu", "masked"
WORK = Workload(8192, heads=8, kv_heads=2, head_dim=64, mask=Causal(), dtype="bfloat16")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernels as one module of a scale of our own, Pallas ones interpreted."""
    module = ModuleType("parts")
    for name in PARTS:
        part = __import__(f"ringloom.codegen.jax.parts.{name}", fromlist=[name])
        monkeypatch.setattr(part, "SCALE", SCALE, raising=False)
        module.__dict__.update({k: v for k, v in vars(part).items() if not k.startswith("__")})
    (splash, _), triton = module.splash_modules(), module.triton()
    backward, make = triton._mha_backward, splash.make_splash_mha_single_device
    monkeypatch.setattr(splash, "make_splash_mha_single_device", partial(make, interpret=True))
    monkeypatch.setattr(triton, "mha", partial(triton.mha, interpret=True))
    monkeypatch.setattr(triton, "_mha_backward", lambda *a: backward(*a[:7], True, *a[8:]))
    return module


def masked_dense(q: Any, k: Any, v: Any, seen: Any) -> Any:
    """Attention by its definition; a row that sees nothing is 0."""
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = jnp.einsum("bhid,bhjd->bhij", q, k, precision="highest") * SCALE
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30)) * seen
    return jnp.einsum("bhij,bhjd->bhid", weights, v, precision="highest")


def two_tiles(module: ModuleType, kind: str, arrays: Any, cols: int) -> Any:
    """Queries meet `cols` earlier keys and then their own, as in a ring: out, dq, dk, dv."""
    forward, backward = (
        getattr(module, f"{name}_{kind}") for name in ("attend", "attend_backward")
    )
    q, k, v, dout = arrays
    tiles = (slice(0, cols), False), (slice(cols, None), True)
    (out, lse), more = (forward(causal, q, k[:, :, x], v[:, :, x]) for x, causal in tiles)
    assert lse.shape == (*q.shape[:3], 1)
    assert out.dtype == lse.dtype == module.accum_dtype(q)
    out, lse = module.merge(out, lse, *more)
    dq, dkv = 0, []
    for x, causal in tiles:
        grads = backward(causal, q, dout, out.astype(q.dtype), lse, k[:, :, x], v[:, :, x])
        dq, dkv = dq + grads[0], [*dkv, grads[1:]]
    return out, dq, *(jnp.concatenate(x, 2) for x in zip(*dkv, strict=True))


@pytest.mark.parametrize(
    ("kind", "dtype", "shape", "limit"),
    [
        ("cpu", "float64", (1, 4, 2, 1100, 600, 16), 1e-12),  # several blocks of each side
        ("cpu", "float64", (2, 2, 1, 33, 90, 8), 1e-12),
        ("cpu", "bfloat16", (1, 2, 2, 64, 32, 16), 5e-3),
        ("tpu", "float32", (1, 4, 2, 100, 60, 32), 1e-4),  # padded to 128 rows and keys
        ("tpu", "bfloat16", (1, 2, 1, 128, 128, 64), 0.15),
        ("triton", "float32", (1, 4, 2, 64, 32, 32), 1e-4),
    ],
)
def test_two_merged_tiles_are_dense_attention(
    parts: ModuleType, kind: str, dtype: str, shape: tuple[int, ...], limit: float
) -> None:
    batch, heads, kv_heads, rows, cols, dim = shape
    sizes = (heads, rows), (kv_heads, rows + cols), (kv_heads, rows + cols), (heads, rows)
    random, number = np.random.default_rng(0), "float64" if dtype == "float64" else "float32"
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        arrays = [
            jnp.asarray(random.standard_normal((batch, *size, dim)), number).astype(dtype)
            for size in sizes
        ]
        result = jax.jit(lambda *x: two_tiles(parts, kind, x, cols))(*arrays)
    work = Workload(rows, rows + cols, heads, kv_heads, dim, batch, number, Causal(), SCALE)
    *inputs, dout = (np.asarray(x, number) for x in arrays)
    truth = dense.forward(work, *inputs)[0], *dense.backward(work, *inputs, dout)
    for x, wanted in zip(result, truth, strict=True):
        assert distance(np.asarray(x, number), wanted) <= limit


def test_masks_of_positions_are_exact_where_rows_see_nothing(
    parts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringloom.codegen.jax.parts import masked

    monkeypatch.setattr(masked, "SEQ", 1000)
    monkeypatch.setattr(masked, "KV_SEQ", 1010)

    def allowed(i: Any, j: Any) -> Any:
        return (j <= i) & (j >= i - 70) & (i // 130 == j // 130)

    random = np.random.default_rng(0)
    rows = np.concatenate([np.arange(300), [-1] * 5, np.arange(900, 1000)]).astype("i4")
    cols = np.concatenate([random.permutation(1010)[:290], [-1] * 9]).astype("i4")
    seen = (rows >= 0)[:, None] & (cols >= 0) & allowed(rows[:, None] + 10, cols)
    blind = ~seen.any(1)
    assert blind.sum() > 5
    q, dout = random.standard_normal((2, 2, 4, len(rows), 8))
    k, v = random.standard_normal((2, 2, 2, len(cols), 8))
    with jax.enable_x64(True):
        truth, pull = jax.vjp(jax.jit(partial(masked_dense, seen=seen)), q, k, v)
        out, lse = masked.attend_masked(q, (k, v), rows, cols, allowed)
        np.testing.assert_allclose(out, truth, rtol=0, atol=1e-12)
        assert (np.isneginf(lse[0, 0, :, 0]) == blind).all()
        queries = q, dout, out, lse
        dq, dkv = masked.attend_masked_backward(queries, (k, v), rows, cols, allowed)
        for x, wanted in zip((dq, *dkv), pull(dout), strict=True):
            np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("kind", "least"), [("f4", 1e-30), ("f8", 1e-300)])
def test_a_stand_in_for_the_output_has_its_product_with_dout(
    parts: ModuleType, kind: str, least: float
) -> None:
    dout = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(kind)
    dout[0] *= least
    dout[1, 2] = 0
    delta = np.where(dout.any(-1, keepdims=True), dout.sum(-1, keepdims=True) * 2, 0)
    with jax.enable_x64(kind == "f8"):
        _, _, made, _ = parts.with_output((dout, jnp.asarray(dout), delta, jnp.asarray(delta)))
        np.testing.assert_allclose((made * dout).sum(-1, keepdims=True), delta, rtol=1e-5)


@pytest.mark.parametrize(
    ("platform", "present", "absent"),
    [
        ("tpu", {"attend_tpu"}, {"attend_cpu", "attend_cudnn", "attend_triton", "triton"}),
        ("gpu", {"attend_cudnn", "attend_triton"}, {"attend_cpu", "attend_tpu", "splash_modules"}),
        ("cpu", {"attend_cpu"}, {"attend_tpu", "attend_cudnn", "splash", "triton"}),
        ("all", {"attend_cpu", "attend_tpu", "attend_cudnn", "attend_triton"}, set()),
    ],
)
def test_programs_hold_the_kernels_of_their_platform_alone(
    platform: str, present: set[str], absent: set[str]
) -> None:
    keep = ("attend", "attend_backward")
    texts = ["SCALE = 1.0\n", *kernels(platform)]
    choices = {"UNEQUAL": False, "STATS": False, "ALL_PLATFORMS": platform == "all"}
    text = assemble('"""Kernels."""', texts, keep, choices=choices)
    names = set(re.findall(r"\w+", text))
    assert present <= names
    assert not absent & names
    exec(text, {"__name__": "kernels"})


NOT_PUBLIC = (
    "jax._src.cudnn",
    "jax.experimental.pallas.ops.gpu",
    "jax.experimental.pallas.ops.tpu.splash_attention",
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_kernel_that_a_jax_release_renames_is_missed_on_its_platform_alone(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith(NOT_PUBLIC)] + [*NOT_PUBLIC]:
        monkeypatch.setitem(sys.modules, name, None)
    module = ModuleType("emitted")
    work = Workload(64, heads=2, head_dim=8, mask=Causal(), dtype=dtype)
    exec(emit(plan("zigzag", work, 2, pass_="both"), "jax"), module.__dict__)
    mesh = Mesh(np.array(jax.devices()[:2]), ("sp",))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 64, 8)), dtype)
    local = jnp.concatenate([module.shard(x, rank) for rank in range(2)], 2)
    with pytest.warns(UserWarning, match="falls back to jnp"):
        out, dq, *_ = jax.jit(gradients(module, mesh))(local, local, local, local)
    whole = module.unshard(jnp.split(out, 2, 2))
    truth = module.dense(*[x.astype("f4")] * 3)
    np.testing.assert_allclose(whole.astype("f4"), truth, atol=3e-2)
    assert np.isfinite(dq.astype("f4")).all()


@cache
def zigzag(platform: str = "all") -> ModuleType:
    module = ModuleType("emitted")
    pair = plan("zigzag", WORK, 8, pass_="both")
    exec(emit(pair, "jax", platform=platform), module.__dict__)
    return module


def gradients(module: ModuleType, mesh: Any) -> Callable[..., Any]:
    def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
        out, pull = jax.vjp(lambda *x: module.attention(*x, mesh=mesh), q, k, v)
        return out, *pull(dout)

    return both


def shapes(dtype: str = "bfloat16") -> list[Any]:
    heads = WORK.heads, WORK.kv_heads, WORK.kv_heads, WORK.heads
    return [jax.ShapeDtypeStruct((1, n, WORK.seq, WORK.head_dim), dtype) for n in heads]


@pytest.mark.parametrize(
    ("platform", "dtype", "forward", "backward"),
    [
        ("tpu", "float32", "tpu_custom_call", "tpu_custom_call"),
        ("cuda", "bfloat16", "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"),
        ("cuda", "float32", "__gpu$xla.gpu.triton", "__gpu$xla.gpu.triton"),
    ],
)
def test_zigzag_calls_the_kernels_of_the_platform_it_is_lowered_for(
    platform: str, dtype: str, forward: str, backward: str
) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]), ("sp",))
    module, calls = zigzag(), []
    ways = partial(module.attention, mesh=mesh), gradients(module, mesh)
    for way, arrays in zip(ways, (shapes(dtype)[:3], shapes(dtype)), strict=True):
        checks = [jax.export.DisabledSafetyCheck.custom_call(n) for n in (forward, backward)]
        made = jax.export.export(jax.jit(way), platforms=[platform], disabled_checks=checks)
        calls.append(Counter(re.findall(r"custom_call @([\w$.]+)", made(*arrays).mlir_module())))
    assert calls[0][forward] >= 3  # the tiles of three kinds
    assert calls[1][backward] >= calls[0][forward] + (3 if forward == backward else 0)


def computed(module: ModuleType, call: Call) -> int:
    """The pairs in blocks that the kernel of TPUs does not skip."""
    q, k = (
        jax.ShapeDtypeStruct((1, 1, len(s), 128), "bfloat16") for s in (call.rows, call.columns)
    )
    kernel, _ = module.splash_kernel(call.band is True, q, k)
    sizes, blocks = kernel.kwargs["block_sizes"], kernel.fwd_mask_info.block_mask
    return int(np.count_nonzero(blocks) * sizes.block_q * sizes.block_kv)


@pytest.mark.parametrize("name", ["ring", "zigzag", "striped", "allgather"])
@pytest.mark.parametrize("tokens", [128, 200, 256, 512, 1024, 2048])
def test_tpus_are_priced_by_the_blocks_that_their_kernel_computes(
    name: str, tokens: int, parts: ModuleType
) -> None:
    one = plan(name, Workload(8 * tokens, heads=1), 8)
    rectangles = Costs(one, hardware("tpu-v4")).rectangles
    for _, node in one.attends():
        for row, pairs in enumerate(rectangles.of(node)[1]):
            calls = rectangles.calls(node.q[row], node.kv[row])
            assert pairs == sum(computed(parts, call) for call in calls)


@pytest.mark.parametrize("rows", [1, 100, 384, 640, 1536, 3000])
def test_the_kernel_of_tpus_computes_no_more_than_is_priced(rows: int, parts: ModuleType) -> None:
    kernels = Kernels(hardware("tpu-v4"), WORK, "forward")
    for columns in (100, 640, 1024, 5000):
        call = Call(range(rows), range(columns), False)
        assert kernels.pairs(call, 1) == computed(parts, call)
    causal = Call(range(rows), range(rows), True)
    assert computed(parts, causal) <= kernels.pairs(causal, 1) <= kernels.full(rows, rows, 1)


COMPILE = """
import os, sys
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ |= {"TPU_ACCELERATOR_TYPE": "v5litepod-8", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
sys.path[:0] = sys.argv[1:]
import numpy as np
from jax.experimental import topologies
from on_jax import test_kernels as tests
from jax.sharding import NamedSharding
jax, module = tests.jax, tests.zigzag("tpu")
for name in ("v5e:2x4", "v5p:2x2x2"):
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    mesh = tests.Mesh(np.array(devices)[:8], ("sp",))
    cut = NamedSharding(mesh, tests.P(None, None, "sp"))
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut) for x in tests.shapes()]
    text = jax.jit(tests.gradients(module, mesh)).lower(*arrays).compile().as_text()
    print(name, text.count("tpu_custom_call"))
"""


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_libtpu_compiles_zigzag_for_two_kinds_of_tpus() -> None:
    paths = [str(ROOT), str(ROOT / "tests")]
    command = [sys.executable, "-c", COMPILE, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    counts = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert counts.keys() == {"v5e:2x4", "v5p:2x2x2"}
    assert all(int(count) >= 9 for count in counts.values())  # three tiles, three kernels each
