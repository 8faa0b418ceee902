"""Gradients of queries where logits are large: the bound that docs/exactness.md states."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import ringloom as rl
from rank_threads import in_threads, load

SEQ, HEADS, DIM = 64, 4, 16
SCALE = DIM**-0.5
OFFSETS = [2.5, 25.0, 250.0, 2500.0]  # that all keys share: logits of -10 to -10,000


def inputs(offset: float, seed: int = 3) -> list[torch.Tensor]:
    """q, k, v, dout in float32; each query has a logit of about -4 * offset with each key."""
    random = np.random.default_rng(seed)
    q, k, v, dout = (torch.tensor(random.normal(size=(1, HEADS, SEQ, DIM))) for _ in range(4))
    return [x.float() for x in (q * 0.1 + 1, k * 0.5 - offset, v, dout)]


def on_one_device(q: Any, k: Any, v: Any, dout: Any) -> list[torch.Tensor]:
    """Output and gradients by PyTorch's own attention."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def sharded(source: str, *arrays: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients by an emitted program, in the order of the sequence."""
    program = load(source)

    def body(group: Any) -> list[torch.Tensor]:
        *leaves, dout = (program.shard(x, group.rank()).clone() for x in arrays)
        leaves = [x.requires_grad_() for x in leaves]
        out = program.attention(*leaves, group=group)
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]

    return [program.unshard(x) for x in zip(*in_threads(program.RANKS, body), strict=True)]


@cache
def ring(ranks: int) -> str:
    """The text of a program whose queries meet the keys of one rank after the other."""
    work = rl.Workload(SEQ, heads=HEADS, head_dim=DIM, mask=rl.Full(), dtype="float32")
    return rl.emit(rl.plan("ring", work, ranks, pass_="both"), "torch")


def bound(parts: int, q: Any, k: Any, v: Any, dout: Any) -> torch.Tensor:
    """The bound: scale * |mean key| * parts / 2 * spacing(lse) * |dout . (out_p - out)|.

    The mean key of a query is by its weights; out_p is the output over the keys of one part.
    """
    scores = q @ k.mT * SCALE
    weights = scores.softmax(-1)
    lse = scores.logsumexp(-1, keepdim=True)
    spacing = torch.tensor(np.spacing(np.abs(lse.numpy().astype(np.float32)))).double()
    of_parts = [
        a.softmax(-1) @ b for a, b in zip(scores.chunk(parts, -1), v.chunk(parts, -2), strict=True)
    ]
    far = torch.stack([(dout * (o - weights @ v)).sum(-1, keepdim=True).abs() for o in of_parts])
    return SCALE * (weights @ k).abs() * parts / 2 * spacing * far.amax(0)


def judged(source: str, ranks: int, offset: float) -> tuple[bool, float]:
    """Returns if dq stays under its bound, and its largest error over the largest bound.

    Beside the bound, as everywhere, four times the error of one device.
    """
    given = inputs(offset)
    wide = [x.double() for x in given]
    exact, single = on_one_device(*wide), on_one_device(*given)
    errors = [(x - y).abs() for x, y in zip(sharded(source, *given), exact, strict=True)]
    alone = [4 * (x - y).abs().max() for x, y in zip(single, exact, strict=True)]
    most = bound(ranks, *wide)
    under = all(errors[n].max() <= alone[n] for n in (0, 2, 3))
    under &= bool((errors[1] <= most + alone[1]).all())
    return under, float(errors[1].max() / most.max())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("offset", OFFSETS)
def test_dq_alone_errs_more_than_on_one_device_and_less_than_the_bound(
    offset: float, ranks: int
) -> None:
    under, part = judged(ring(ranks), ranks, offset)
    assert under
    assert part > 1 / 100, "the bound says nothing"


def test_a_log_sum_exp_of_fewer_digits_is_over_the_bound() -> None:
    right = "lse.copy_(torch.logaddexp(lse, part_lse))"
    assert right in ring(2)
    rounded = ring(2).replace(right, f"{right[:-1]}.bfloat16())")
    assert not any(judged(rounded, 2, offset)[0] for offset in OFFSETS)


@pytest.mark.parametrize("ranks", [2, 4])
def test_subtracting_the_mean_key_changes_no_result_and_saves_the_digits(ranks: int) -> None:
    q, k, v, dout = inputs(250.0)
    exact = on_one_device(*(x.double() for x in (q, k, v, dout)))
    near = sharded(ring(ranks), q, k - k.mean(2, keepdim=True), v, dout)
    for name, x, right in zip(("out", "dq", "dk", "dv"), near, exact, strict=True):
        assert (x - right).abs().max() <= (5e-6 if name == "out" else 2e-5), name
    far = sharded(ring(ranks), q, k, v, dout)
    assert (far[1] - exact[1]).abs().max() > 1e-3
