"""Faults planted in attention of six implementations, and the kinds that an audit may name them by.

A fault is a way to spoil one implementation: a wrapper around its function, or a part of it that is
replaced while the audit lasts.
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
from codegen import emit
from ringloom.auditing.adapters import pytorch_ring, ring_attention_pytorch
from runtimes.emitted import load
from runtimes.peers import of_torch

Attend = Callable[..., Any]
RANKS = 4
WORK = rl.Workload(64, heads=4, kv_heads=2, head_dim=16, batch=2, dtype="float32")


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


def emitted(name: str, schedule: str, layout: str, mask: str) -> Subject:
    work = rl.Workload(64, heads=4, kv_heads=2, head_dim=16, batch=2, dtype="float32", mask=mask)
    program = load(emit(rl.plan(schedule, work, RANKS, pass_="both"), "torch"))
    return Subject(name, program.attention, work, layout, program)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "ring": partial(emitted, "ring", "ring", "contiguous", "causal"),
    "zigzag": partial(emitted, "zigzag", "zigzag", "zigzag", "causal"),
    "striped": partial(emitted, "striped", "striped", "striped", "causal"),
    "head-tail": lambda: Subject("head-tail", pytorch_ring(), equal_heads(), "zigzag", of_torch),
    "all-to-all": lambda: Subject(
        "all-to-all",
        pytorch_ring(balanced=False, exchange="all-to-all"),
        equal_heads(),
        "contiguous",
        of_torch,
    ),
    "package": lambda: Subject(
        "package", ring_attention_pytorch(), equal_heads(), "contiguous", None, "forward"
    ),
}


def equal_heads() -> rl.Workload:
    return rl.Workload(64, heads=4, head_dim=16, batch=2, dtype="float32")


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
    """Adds a little of the output of the call before."""
    kept = list[Any]()

    def spoiled(q: Any, k: Any, v: Any) -> Any:
        out = attend(q, k, v)
        kept.append(out.detach())
        return out + 0.01 * kept[-2] if len(kept) > 1 else out

    return spoiled


def next_rank(x: Any) -> Any:
    """Takes the shard of the next rank: a rotation too many."""
    with torch.no_grad():
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(parts, x.detach().contiguous())
    moved: Any = parts[(dist.get_rank() + 1) % RANKS]
    return moved


def rounded(x: Any) -> Any:
    return x + (x.bfloat16().float() - x).detach()


WRAPPED = [
    Fault("scale", ("wrong scale",), inputs(lambda q, k, v: (q * 1.1, k, v))),
    Fault(
        "heads of keys",
        ("wrong GQA group",),
        inputs(lambda q, k, v: (q, k.roll(1, 1), v.roll(1, 1))),
    ),
    Fault("batch rows", ("wrong batch row",), inputs(lambda q, k, v: (q, k.flip(0), v.flip(0)))),
    Fault("stale keys", ("stale keys", "depends on calls"), partial(wrapped, stale)),
    Fault("zeroed dq of a head", ("gradient lost",), gradients(0, zeroed_head)),
    Fault("zeroed dk of a head", ("gradient lost",), gradients(1, zeroed_head)),
    Fault("doubled dv", ("gradient scaled",), gradients(2, lambda grad: 2 * grad)),
    Fault("dk of a key lost", ("gradient lost",), gradients(1, one_key_lost)),
    Fault("noise", ("changes between runs",), outputs(noisy)),
    Fault("dtype", ("wrong dtype",), outputs(lambda out: out.double())),
    Fault("shape", ("wrong shape",), outputs(lambda out: out.transpose(1, 2))),
    Fault(
        "memory of calls", ("depends on calls", "changes between runs"), partial(wrapped, remembers)
    ),
    Fault(
        "keys of the next rank",
        ("another mask", "stale keys"),
        inputs(lambda q, k, v: (q, next_rank(k), next_rank(v))),
    ),
    Fault("16-bit keys", ("imprecise",), inputs(lambda q, k, v: (q, rounded(k), rounded(v)))),
]
BACKWARD = {"zeroed dq of a head", "zeroed dk of a head", "doubled dv", "dk of a key lost"}


# ---- parts of emitted programs, and of PyTorch's template


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


def part(name: str, *kinds: str, **names: Any) -> Fault:
    return Fault(name, kinds, partial(replaced, names))


LOST, TWICE = ("block lost", "keys lost"), ("attended twice",)
OURS = [
    part("lost block", *LOST, merge_attention=skipping(1)),
    part("doubled block", *TWICE, merge_attention=skipping(1, 2)),
    part("lost gradients of a block", "gradient lost", add_gradients=skipping(1)),
    part(
        "doubled gradients of a block",
        "gradient scaled",
        "attended twice",
        add_gradients=skipping(1, 2),
    ),
    part("one key of the future", "off by one", "future leak", attend=on_diagonal(1)),
    part("no own key", "off by one", "keys lost", attend=on_diagonal(-1)),
    part("full on the diagonal", "future leak", "mask ignored", attend=on_diagonal(None)),
    part("average of partials", "unmerged partials", merge=halves),
    part("naive exponentials", "overflow", attend=naive),
]
TEMPLATE = [
    part("lost block", *LOST, step=skipping(1)),
    part("doubled block", *TWICE, step=skipping(1, 2)),
    part("one key of the future", "off by one", "future leak", _forward=on_diagonal(1)),
    part("full on the diagonal", "future leak", "mask ignored", _forward=on_diagonal(None)),
    part("equal partials", "unmerged partials", step=equal_lse),
    part("naive exponentials", "overflow", _forward=naive),
]


def faults_of(name: str) -> list[Fault]:
    """The faults that are planted in an implementation."""
    if name == "package":
        return [f for f in WRAPPED if f.name not in {*BACKWARD, "heads of keys"}]
    if name in ("head-tail", "all-to-all"):
        return [*WRAPPED[:9], *TEMPLATE]
    return [*WRAPPED, *OURS] if name == "zigzag" else [*WRAPPED[4:9], *OURS]
