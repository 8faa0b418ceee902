"""Emitted torch programs against PyTorch's own ring attention, which nobody here wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer_processes import on_processes, results
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw

torch = pytest.importorskip("torch")
ring = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")

from rank_threads import run  # noqa: E402  only where torch is

RANKS = 4
WORK = Workload(seq=64, heads=4, head_dim=8, batch=2, mask=Causal(), dtype="float64")
MODES = [(rotate, balance) for rotate in ("ALL_GATHER", "ALL_TO_ALL") for balance in (False, True)]


def head_tail(balanced: bool) -> Any:
    """Positions in the order of the ranks' shards, from PyTorch's own load balancer."""
    if not balanced:
        return torch.arange(WORK.seq)
    name = "torch.distributed.tensor.experimental._context_parallel._load_balancer"
    balancer = pytest.importorskip(name)._HeadTailLoadBalancer(WORK.seq, RANKS, "cpu")
    return balancer._generate_indices().flatten()


def forward_op(query: Any, key: Any, value: Any, is_causal: bool, **_: Any) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return op(query, key, value, 0.0, is_causal)


def backward_op(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool
) -> Any:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return op(grad_out, query, key, value, out, logsumexp.contiguous(), 0.0, is_causal)


def peer_rank(rank: int) -> dict[str, list[Any]]:
    """One rank of PyTorch's template in its four modes: out, dq, dk and dv of its shard."""
    group, options = torch.distributed.group.WORLD, ring._cp_options
    options.convert_to_f32 = False
    shards = {}
    for rotate, balanced in MODES:
        options.rotate_method = ring._RotateMethod[rotate]
        options.enable_load_balance = balanced
        own = head_tail(balanced).chunk(RANKS)[rank]
        q, k, v, dout = (torch.from_numpy(x)[:, :, own].contiguous() for x in draw(WORK, 5))
        out, lse = ring._templated_ring_attention(group, 2, forward_op, q, k, v, is_causal=True)[:2]
        grads = ring._templated_ring_attention_backward(
            group, 2, backward_op, dout, "grad_out", q, k, v, out, lse, True
        )
        shards[f"{rotate}-{balanced}"] = [out, *grads[:3]]
    return shards


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of PyTorch's template."""
    folder = tmp_path_factory.mktemp("peer")
    on_processes(peer_rank, RANKS, folder)
    return folder


@pytest.mark.parametrize(("rotate", "balanced"), MODES)
def test_programs_agree_with_pytorch_s_ring(peer: Path, rotate: str, balanced: bool) -> None:
    pair = plan("zigzag" if balanced else "ring", WORK, RANKS, pass_="both")
    ours = run(pair, *draw(WORK, 5))
    order = head_tail(balanced).numpy()
    for own, theirs in zip(ours, results(peer, f"{rotate}-{balanced}", RANKS, axis=2), strict=True):
        np.testing.assert_allclose(own[:, :, order], theirs, rtol=0, atol=1e-12)
