"""Emitted torch programs against ring-attention-pytorch, if the package is there.

    pip install 'ringloom[peers]'

It is no dependency: without it these tests are skipped.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer_processes import on_processes, results
from ringloom.planner.layouts import by_tokens
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from shards import in_order

torch = pytest.importorskip("torch")
ring = pytest.importorskip(
    "ring_attention_pytorch.ring_flash_attention",
    reason="ring-attention-pytorch is not installed: pip install 'ringloom[peers]'",
)

from rank_threads import run  # noqa: E402  only where torch is

RANKS = 4
CASES = {"ring-full": False, "ring-causal": True, "striped-causal": True}
# Theirs share KV head h among the query heads h, h + 2, ..; ours among neighbours.
HEADS = np.arange(4).reshape(2, 2).T.flatten()


def workload(case: str) -> Workload:
    mask = case.partition("-")[2]
    return Workload(64, None, 4, 2, 8, batch=2, mask=mask, dtype="float64")


def order(case: str) -> Any:
    layout = "striped" if case.startswith("striped") else "contiguous"
    return in_order(by_tokens(workload(case), RANKS, layout).q, RANKS)


def peer_rank(rank: int) -> dict[str, list[Any]]:
    """One rank of the package's ring: per case out, dq, dk and dv, [batch, tokens, heads, d]."""
    torch.set_default_dtype(torch.float64)  # of its row sums
    ring.EPSILON = 1e-300  # what it adds to the sum of each block against empty rows: 1e-10
    shards = {}
    for case, causal in CASES.items():
        own = np.split(order(case), RANKS)[rank]
        q, k, v, dout = (x[:, :, own].swapaxes(1, 2) for x in draw(workload(case), 5))
        arrays = (q[:, :, HEADS], k, v, dout[:, :, HEADS])
        q, k, v, dout = (torch.from_numpy(np.ascontiguousarray(x)) for x in arrays)
        for x in (q, k, v):
            x.requires_grad_()
        out = ring.ring_flash_attn(
            *(q, k, v),
            causal=causal,
            bucket_size=16,
            ring_reduce_col=True,
            striped_ring_attn=case.startswith("striped"),
        )
        out.backward(dout)
        shards[case] = [out.detach(), q.grad, k.grad, v.grad]
    return shards


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of the package."""
    folder = tmp_path_factory.mktemp("package")
    on_processes(peer_rank, RANKS, folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_programs_agree_with_the_package(peer: Path, case: str) -> None:
    work = workload(case)
    ours = run(plan(case.partition("-")[0], work, RANKS, pass_="both"), *draw(work, 5))
    out, dq, dk, dv = (x[:, :, order(case)].swapaxes(1, 2) for x in ours)
    theirs = results(peer, case, RANKS, axis=1)
    for one, other in ((out, theirs[0]), (dq, theirs[1])):
        np.testing.assert_allclose(one[:, :, HEADS], other, rtol=0, atol=1e-12)
    # Version 0.5.20 takes the pair (received, sent) of its last hop for (dK, dV): K's gradient is
    # then dK + dV, and V's is that sum of another rank.
    keys = theirs[2]
    assert any(np.allclose(one, keys, rtol=0, atol=1e-12) for one in (dk, dk + dv))
