"""Ways to plant faults in attention: wrappers around a function, and parts that are replaced.

A wrapper fits any implementation. A part is a function of a module: of an emitted program, or of
PyTorch's template. It is replaced while an audit lasts.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import ringloom as rl
from ringloom.codegen import emit
from ringloom.runtimes.emitted import load
from ringloom.runtimes.peers import of_torch

Attend = Callable[..., Any]
RANKS = 4


@dataclass(frozen=True)
class Fault:
    """A fault: its name, the kinds it may be called, and what plants it."""

    name: str
    kinds: tuple[str, ...]
    plant: Callable[["Subject"], Any]  # a context manager that yields the spoiled function


@dataclass(frozen=True)
class Subject:
    """An implementation: its function, workload and layout; `parts` is a module to be spoiled."""

    name: str
    attend: Attend
    work: rl.Workload
    layout: str
    parts: Any = None
    pass_: str = "both"


def emitted(
    schedule: str, layout: str, work: rl.Workload, name: str = "", ranks: int = RANKS
) -> Subject:
    """Returns a program of ours as an implementation, under a name or that of its schedule."""
    plans = rl.plan(schedule, work, ranks, pass_="both")
    program = load(emit(plans, "torch"))
    return Subject(name or schedule, program.attention, work, layout, program)


# ---- wrappers, for any implementation


@contextmanager
def wrapped(wrap: Callable[[Attend], Attend], subject: Subject) -> Iterator[Attend]:
    yield wrap(subject.attend)


class Spoiled(torch.autograd.Function):
    """Returns its input; `change` spoils its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, change: Any) -> Any:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.change(grad.clone()), None


def inputs(change: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> Any:
    """Plants a change of q, k and v."""
    return partial(wrapped, lambda attend: lambda q, k, v: attend(*change(q, k, v)))


def outputs(change: Callable[[Any], Any]) -> Any:
    """Plants a change of the output."""
    return partial(wrapped, lambda attend: lambda q, k, v: change(attend(q, k, v)))


def gradients(which: int, change: Callable[[Any], Any]) -> Any:
    """Plants a change of the gradient of q, k or v."""

    def wrap(attend: Attend) -> Attend:
        def spoiled(*arrays: Any) -> Any:
            arrays = tuple(
                Spoiled.apply(x, change) if number == which else x
                for number, x in enumerate(arrays)
            )
            return attend(*arrays)

        return spoiled

    return partial(wrapped, wrap)


def zeroed_head(grad: Any) -> Any:
    grad[:, 1] = 0
    return grad


def one_key_lost(grad: Any) -> Any:
    grad[:, :, 3] = 0
    return grad


def stale(attend: Attend) -> Attend:
    """Attends the keys and values of the call before."""
    kept = list[Any]()

    def spoiled(q: Any, k: Any, v: Any) -> Any:
        kept.append((k.detach().clone(), v.detach().clone()))
        return attend(q, *(kept[-2] if len(kept) > 1 else (k, v)))

    return spoiled


def noisy(out: Any) -> Any:
    return out + 1e-3 * torch.rand_like(out)


def remembers(attend: Attend) -> Attend:
    """Adds a tenth of the output of the call before."""
    kept = list[Any]()

    def spoiled(q: Any, k: Any, v: Any) -> Any:
        out = attend(q, k, v)
        kept.append(out.detach())
        return out + 0.1 * kept[-2] if len(kept) > 1 else out

    return spoiled


def next_rank(x: Any) -> Any:
    """Takes the shard of the next rank: a rotation too many."""
    with torch.no_grad():
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(parts, x.detach().contiguous())
    moved: Any = parts[(dist.get_rank() + 1) % RANKS]
    return moved


def calibrated(attend: Attend) -> Attend:
    """Rounds values to a share of the largest number so far, as scales of 8 bits are kept."""
    top = [0.0]

    def spoiled(q: Any, k: Any, v: Any) -> Any:
        top[0] = max(top[0], float(v.detach().abs().max()))
        step = top[0] / 2048 or 1.0
        return attend(q, k, v + (torch.round(v / step) * step - v).detach())

    return spoiled


def rounded(x: Any) -> Any:
    return x + (x.bfloat16().float() - x).detach()


# ---- parts of programs, and of PyTorch's template


@contextmanager
def replaced(names: dict[str, Callable[[Any], Any]], subject: Subject) -> Iterator[Attend]:
    """Replaces functions of a module by what is made of them, while the audit lasts."""
    owner = subject.parts
    with ExitStack() as stack:
        for name, make in names.items():
            holder = owner
            if name == "step":
                holder = of_torch.template(True, "all-gather")._SDPAMerger
            stack.enter_context(patch.object(holder, name, make(getattr(holder, name))))
        yield subject.attend


def skipping(number: int, times: int = 0) -> Callable[[Any], Any]:
    """Runs every RANKS-th call of this number not once, but so many times; on the last rank."""

    def make(function: Any) -> Any:
        calls = [0]

        def spoiled(*args: Any, **more: Any) -> Any:
            now, calls[0] = calls[0] % RANKS == number, calls[0] + 1
            for _ in range(times if now and dist.get_rank() == RANKS - 1 else 1):
                function(*args, **more)

        return spoiled

    return make


def dense(q: Any, k: Any, v: Any, diagonal: int | None) -> tuple[Any, Any]:
    """Attends up to a diagonal, by every formula's first form: output and log-sum-exp."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if diagonal is not None:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)
        scores = scores.masked_fill(~allowed, -torch.inf)
    lse = scores.logsumexp(-1)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v, lse


def on_diagonal(diagonal: int | None) -> Callable[[Any], Any]:
    """Spoils the kernel: causal calls end at another diagonal; None: they are full."""

    def make(function: Any) -> Any:
        def spoiled(query: Any, key: Any, value: Any, is_causal: Any, **_: Any) -> Any:
            if not is_causal:
                return function(query, key, value, is_causal)
            out, lse = dense(query, key, value, diagonal)
            return (out, lse[..., None]) if function.__name__ == "attend" else (out, lse)

        return spoiled

    return make


def naive(function: Any) -> Any:
    """Spoils the kernel: exponentials of scores as they are."""

    def spoiled(query: Any, key: Any, value: Any, is_causal: Any, **_: Any) -> Any:
        k, v = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        weights = (query @ k.mT * query.shape[-1] ** -0.5).exp()
        weights = weights.tril() if is_causal else weights
        total = weights.sum(-1, keepdim=True)
        lse = total.log() if function.__name__ == "attend" else total.log()[..., 0]
        return weights / total @ v, lse

    return spoiled


def halves(_: Any) -> Any:
    def merge(out: Any, lse: Any, part: Any, part_lse: Any) -> None:
        first = torch.isinf(lse)
        out.copy_(torch.where(first, part, (out + part) / 2))
        lse.copy_(torch.logaddexp(lse, part_lse))

    return merge


def equal_lse(function: Any) -> Any:
    def step(self: Any, out: Any, lse: Any, partial: Any) -> None:
        function(self, out, torch.zeros_like(lse), partial)

    return step
