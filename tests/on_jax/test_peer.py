"""Emitted JAX programs against a public ring attention, from a checkout of it.

    git clone https://github.com/haoliuhl/ringattention
    RINGLOOM_HAOLIUHL=ringattention pytest tests/on_jax/test_peer.py

It imports flax and einops, which `pip install 'ringloom[peers]'` brings. Without the path to it
these tests are skipped.
"""

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh, jax
from ringloom.planner.masks import BlockCausal, Causal, Documents, Full, Mask
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw
from ringloom.runtimes.backends import run

VARIABLE = "RINGLOOM_HAOLIUHL"
RANKS, TOKENS, CHUNK = 4, 64, 8
LENGTHS = (20, 11, 33)
# Masks, and how the public ring is told: how many tokens see each other, and where documents are.
MASKS: list[tuple[Mask, int | None, tuple[int, ...]]] = [
    (Full(), None, ()),
    (Causal(), 1, ()),
    (BlockCausal(4), 4, ()),
    (Documents(LENGTHS), None, LENGTHS),
    (Causal() & Documents(LENGTHS), 1, LENGTHS),
]


@pytest.fixture(scope="module")
def public() -> Any:
    """The one module of the checkout that has the ring."""
    checkout = os.environ.get(VARIABLE)
    if not checkout:
        pytest.skip(f"{VARIABLE} names no checkout of https://github.com/haoliuhl/ringattention")
    pytest.importorskip("flax")
    pytest.importorskip(
        "einops", reason="the public ring imports einops: pip install 'ringloom[peers]'"
    )
    where = Path(checkout, "ringattention", "ringattention_jax.py")
    assert where.is_file(), f"{VARIABLE}={checkout}, but there is no {where}"
    spec = spec_from_file_location("ringattention_jax", where)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(public: Any, block: int | None, lengths: tuple[int, ...], *arrays: Array) -> list[Array]:
    """Out, dq, dk and dv of the public ring in float64; it keeps [batch, tokens, heads, d]."""
    ids = np.repeat(range(len(lengths)), lengths)[None] if lengths else None
    settings = {
        "causal_block_size": block,
        "deterministic": True,
        "dropout_rng": None,
        "attn_pdrop": 0.0,
        "query_chunk_size": CHUNK,
        "key_chunk_size": CHUNK,
        "policy": jax.checkpoint_policies.nothing_saveable,
        "dtype": jax.numpy.float64,
        "precision": None,
        "prevent_cse": True,
    }

    def ring(q: Any, k: Any, v: Any) -> Any:
        return public.ring_attention(q, k, v, None, ids, None, "sp", False, settings)

    place = jax.sharding.PartitionSpec(None, "sp")
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    specs = {"mesh": mesh, "in_specs": (place,) * 3, "out_specs": place, "check_vma": False}
    q, k, v, dout = (x.swapaxes(1, 2) for x in arrays)
    out, pull = jax.vjp(jax.jit(jax.shard_map(ring, **specs)), q, k, v)
    return [np.asarray(x).swapaxes(1, 2) for x in (out, *pull(dout))]


@pytest.mark.parametrize(("mask", "block", "lengths"), MASKS, ids=str)
def test_programs_agree_with_the_public_ring(
    public: Any, mask: Mask, block: int | None, lengths: tuple[int, ...]
) -> None:
    work = Workload(TOKENS, heads=2, head_dim=8, batch=2, mask=mask, dtype="float64")
    inputs = draw(work, 5)
    with jax.enable_x64(True):
        truths = theirs(public, block, lengths, *inputs)
    for schedule in ("ring", "zigzag"):
        ours = run(plan(schedule, work, RANKS, pass_="both"), *inputs, backend="jax")
        for one, other in zip(ours, truths, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
