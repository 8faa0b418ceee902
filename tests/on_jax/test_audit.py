"""Audits of JAX functions on virtual devices: our own programs, whole and with faults."""

from typing import Any

import numpy as np
import pytest

from jax_devices import Mesh, jax
from planner.layouts import by_tokens
from planner.planning import plan
from planner.workload import Workload
from runtimes.audit import Case, Report
from runtimes.audit.examining import examine
from runtimes.audit.on_jax import Asker
from runtimes.emitted import load, source_of

RANKS = 4
WORK = Workload(64, heads=2, kv_heads=1, head_dim=8, dtype="float32")


def audited(change: Any, layout: str | None = "zigzag") -> Report:
    """Audits zigzag's program on inputs that are changed first."""
    program = load(source_of(plan("zigzag", WORK, RANKS, pass_="both"), "jax"))

    def attend(q: Any, k: Any, v: Any, mesh: Mesh) -> Any:
        return program.attention(*change(q, k, v), mesh=mesh, axis="sp")

    q = layout and tuple(by_tokens(WORK, RANKS, layout).q.shards(RANKS))
    return examine(Asker.on_devices(attend, Case(WORK, RANKS, q or None)))


def test_a_program_is_exact_and_its_layout_detected() -> None:
    report = audited(lambda q, k, v: (q, k, v), layout=None)
    assert report.exact, report.faults
    for shard, right in zip(
        report.layout or (), by_tokens(WORK, RANKS, "zigzag").q.shards(RANKS), strict=True
    ):
        np.testing.assert_array_equal(shard, right)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda q, k, v: (q, k, jax.lax.stop_gradient(v)), "gradient lost"),
        (lambda q, k, v: (q * 0.5, k, v), "wrong scale"),
    ],
    ids=["gradient", "scale"],
)
def test_a_fault_is_named(change: Any, kind: str) -> None:
    assert [fault.kind for fault in audited(change).faults] == [kind]


def test_another_layout_than_stated_is_a_fault() -> None:
    assert not audited(lambda q, k, v: (q, k, v), layout="contiguous").exact
