"""Tiles of JAX programs: by the kernels of a chip, piece by piece, where the mask allows it."""

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh, jax
from ringloom.codegen import emit
from ringloom.codegen.frame.masks import boxes
from ringloom.codegen.jax.parts import tiles
from ringloom.planner.masks import Causal, Documents, Full, Global, Mask, Prefix, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import distance

jnp = jax.numpy
WORK = Workload(64, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")
KINDS = ("nothing", "some", "all", "causal")


def built(schedule: str, work: Workload, ranks: int = 4, platform: str = "all") -> ModuleType:
    """The program of a schedule."""
    module = ModuleType("emitted")
    exec(emit(plan(schedule, work, ranks, pass_="both"), "jax", platform=platform), vars(module))
    return module


def both_passes(module: ModuleType, ranks: int, *arrays: Any) -> list[Any]:
    """Output and gradients in the order of the sequence, and what `attend` was called for."""
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("sp",))

    def shards(x: Any) -> Any:
        return jnp.concatenate([module.shard(x, rank) for rank in range(ranks)], 2)

    q, k, v, dout = map(shards, map(jnp.asarray, arrays))
    run = partial(module.attention, mesh=mesh)
    out, pull = jax.vjp(jax.jit(run), q, k, v)
    return [module.unshard(jnp.split(x, ranks, 2)) for x in (out, *pull(dout))]


@pytest.mark.parametrize(
    ("schedule", "mask"),
    [
        *(("allgather", m) for m in (Causal(), Window(20, 0), Documents((19, 45)) & Causal())),
        *(("allgather:layout=contiguous", m) for m in (Prefix(20), Window(9, 12))),
        ("llama3", Causal()),
    ],
    ids=str,
)
def test_pieces_that_kernels_attend_are_exact(schedule: str, mask: Mask) -> None:
    """On CPUs positions are attended; here pieces are, by the kernel that CPUs have."""
    heads = {"heads": 16, "kv_heads": 8} if schedule == "llama3" else {}
    work = replace(WORK, mask=mask, **heads)
    module, calls = built(schedule, work), Counter[str]()

    def counted(name: str) -> Any:
        kernel = getattr(module, name)

        def called(x: Any, kv: Any, causal: bool = False) -> Any:
            calls[name] += 1
            return kernel(x, kv, causal)

        return called

    scope = vars(module)
    scope["by_pieces"] = lambda _, pieces, piece, *arrays: pieces(piece, *arrays)
    scope |= {name: counted(name) for name in ("attend", "attend_backward")}
    inputs = draw(work, 3)
    with jax.enable_x64(True):
        results = both_passes(module, 4, *inputs)
    truth = dense.forward(work, *inputs[:3])[0], *dense.backward(work, *inputs)
    for x, wanted in zip(results, truth, strict=True):
        assert distance(np.asarray(x), wanted) <= 1e-12
    assert calls["attend"] >= calls["attend_backward"] >= 2  # of whole pieces and of a diagonal


COMMON = (
    *(Causal(), Full(), Window(3, 0), Window(2, 2), Prefix(5), Global(2)),
    *(Causal() | Documents((5, 7)), Causal() & Documents((5, 7)), Window(2, 0) | Global(3)),
)


@pytest.mark.parametrize("mask", COMMON, ids=str)
def test_what_two_pieces_see_is_told_from_the_boxes_of_the_mask(mask: Mask) -> None:
    work = replace(WORK, seq=9, kv_seq=12, mask=mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "BOXES", boxes(work, any_length=False))
        patch.setattr(tiles, "KV_SEQ", work.offset)
        patch.setattr(tiles, "jnp", np)  # takes a hundredth of the time
        for size, i, j in product((1, 2, 4), range(6), range(9)):
            queries, keys = np.arange(i, i + size), np.arange(j, j + size)
            seen = np.asarray(work.mask.allowed(queries + work.offset, keys))
            exact = {0: ~seen, 1: seen | True, 2: seen, 3: seen == np.tri(size, dtype=bool)}
            kind = int(tiles.tile_kind(queries, keys))
            assert exact[kind].all(), f"not {KINDS[kind]}:\n{seen}"
            assert kind != 1 or mask != Causal() or abs(j - i - work.offset) % size
            assert tiles.tile_kind(np.append(queries, i), np.append(j, keys)) == 1


@pytest.mark.parametrize(
    ("schedule", "platform", "dtype", "forward", "backward"),
    [
        ("allgather", "tpu", "float32", "tpu_custom_call", "tpu_custom_call"),
        ("allgather", "cuda", "bfloat16", "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"),
        ("mesh2d", "cuda", "float32", "__gpu$xla.gpu.triton", "__gpu$xla.gpu.triton"),
        ("llama3", "tpu", "bfloat16", "tpu_custom_call", "tpu_custom_call"),
    ],
)
def test_tiles_call_the_kernels_of_the_platform_they_are_lowered_for(
    schedule: str, platform: str, dtype: str, forward: str, backward: str
) -> None:
    work = Workload(8192, heads=16, kv_heads=8, head_dim=64, mask=Causal(), dtype=dtype)
    module, mesh = built(schedule, work, 8), Mesh(np.array(jax.devices()[:8]), ("sp",))
    heads = work.heads, work.kv_heads, work.kv_heads
    arrays = [jax.ShapeDtypeStruct((1, n, work.seq, work.head_dim), dtype) for n in heads]

    def gradients(q: Any, k: Any, v: Any) -> Any:
        out, pull = jax.vjp(partial(module.attention, mesh=mesh), q, k, v)
        return pull(out)

    calls = []
    for way in (partial(module.attention, mesh=mesh), gradients):
        checks = [jax.export.DisabledSafetyCheck.custom_call(n) for n in (forward, backward)]
        made = jax.export.export(jax.jit(way), platforms=[platform], disabled_checks=checks)
        calls.append(Counter(re.findall(r"custom_call @([\w$.]+)", made(*arrays).mlir_module())))
    assert calls[0][forward] >= 2  # whole pieces, and the diagonal
    assert calls[1][backward] >= calls[0][forward] + 2 * (forward == backward)


def test_a_program_for_cpus_has_no_pieces() -> None:
    names = vars(built("allgather", WORK, platform="cpu"))
    assert "attend_tile" in names
    assert "attend_pieces" not in names
