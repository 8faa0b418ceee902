"""Audits of JAX functions on virtual devices: our own programs and a public ring, with faults.

RINGLOOM_HAOLIUHL=CHECKOUT RINGLOOM_PROFILE=nightly pytest tests/on_jax/test_audit.py    all of them
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh
from planted_in_jax import (
    OURS,
    PUBLIC,
    Edit,
    audited_checkout,
    audited_program,
    right_program,
    right_ring,
)
from ringloom.planner.layouts import by_tokens
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.audit import Case, Report, launch
from ringloom.runtimes.audit.examining import examine
from ringloom.runtimes.audit.running.on_jax import Asker
from ringloom.runtimes.emitted import load, source_of
from sampling import NIGHTLY, square

CHECKOUT = "RINGLOOM_HAOLIUHL"
EVERY = 1 if NIGHTLY else 4  # of how many faults one is planted

RANKS = 4
WORK = Workload(64, heads=2, kv_heads=1, head_dim=8, dtype="float32")


def audited(layout: str | None) -> Report:
    """Audits zigzag's program."""
    program = load(source_of(plan("zigzag", WORK, RANKS, pass_="both"), "jax"))

    def attend(q: Any, k: Any, v: Any, mesh: Mesh) -> Any:
        return program.attention(q, k, v, mesh=mesh)

    q = layout and tuple(by_tokens(WORK, RANKS, layout).q.shards(RANKS))
    return examine(Asker.on_devices(attend, Case(WORK, RANKS, q or None)))


def test_a_program_is_exact_and_its_layout_detected() -> None:
    report = audited(layout=None)
    assert report.exact, report.faults
    for shard, right in zip(
        report.layout or (), by_tokens(WORK, RANKS, "zigzag").q.shards(RANKS), strict=True
    ):
        np.testing.assert_array_equal(shard, right)


def test_a_program_is_launched_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(source_of(plan("ring", WORK, RANKS, pass_="both"), "jax"))
    q = tuple(by_tokens(WORK, RANKS, "contiguous").q.shards(RANKS))
    report = launch(f"{tmp_path}/ring.py:attention", Case(WORK, RANKS, q), backend="jax")
    assert report.exact, report


CLONE = """
import jax.numpy as jnp
from jax import lax, nn

def ring_attention(q, k, v, bias, segments, cache, axis, wide, settings):
    assert settings["query_chunk_size"] == 3 and settings["dtype"] == q.dtype
    rows = lax.axis_index(axis) * q.shape[1] + jnp.arange(q.shape[1])
    k, v = (lax.all_gather(x, axis, axis=1, tiled=True) for x in (k, v))
    block, columns = settings["causal_block_size"] or k.shape[1], jnp.arange(k.shape[1])
    seen = rows[:, None] // block >= columns // block
    return nn.dot_product_attention(q, k, v, mask=seen[None, None])
"""


def test_the_adapter_of_the_public_ring_calls_it_as_it_is(tmp_path: Path) -> None:
    """A clone that takes and returns what the public ring does."""
    path = tmp_path / "ringattention" / "ringattention_jax.py"
    path.parent.mkdir()
    path.write_text(CLONE)
    assert right_ring(tmp_path, 2, 1, "float32").exact


@pytest.mark.parametrize("edit", OURS[::EVERY], ids=lambda edit: edit.name)
def test_a_fault_of_a_program_is_named(edit: Edit) -> None:
    report = audited_program(edit)
    assert report.faults
    assert report.faults[0].kind in edit.kinds


@pytest.mark.parametrize("seed", range(20 if NIGHTLY else 1))
def test_a_right_program_raises_no_alarm(seed: int) -> None:
    name, report = right_program(seed)
    assert report.exact, (name, report, report.faults)


@pytest.fixture
def checkout() -> Path:
    """The checkout of the public ring."""
    if not (path := os.environ.get(CHECKOUT)):
        pytest.skip(f"{CHECKOUT} names no checkout of https://github.com/haoliuhl/ringattention")
    pytest.importorskip("flax")
    pytest.importorskip("einops")
    return Path(path)


@pytest.mark.parametrize(
    ("ranks", "block", "dtype"),
    square((1, 2, 3, 4, 5, 7), (None, 1, 3), ("float32", "bfloat16"), every=6),
)
def test_the_public_ring_raises_no_alarm(
    checkout: Path, ranks: int, block: int | None, dtype: str
) -> None:
    report = right_ring(checkout, ranks, block, dtype)
    assert report.exact, report.faults


def test_faults_of_the_public_ring_are_found_and_named(checkout: Path, tmp_path: Path) -> None:
    named = []
    for edit in PUBLIC[::EVERY]:
        report = audited_checkout(checkout, tmp_path / edit.name, edit)
        assert report.faults, edit.name
        named.append(report.faults[0].kind in edit.kinds)
    assert np.mean(named) >= 0.8


def test_another_layout_than_stated_is_a_fault() -> None:
    assert not audited(layout="contiguous").exact
