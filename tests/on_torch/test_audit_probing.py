"""Audits by probing, in one process: faults are planted as the weights of a dense attention."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringloom.auditing.adapters import flash_shaped
from ringloom.planner.layouts import by_tokens
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit import Case, Report, audit_rank, launch
from ringloom.runtimes.audit.probes.detecting import detect
from ringloom.runtimes.audit.probes.questions import Answer, Question, inputs
from sampling import square

torch = pytest.importorskip("torch")
from planting import calibrated, remembers  # noqa: E402  only where torch is

TOKENS = 48
MASK = "causal & documents:10,15,23 & window:9"
I, J = np.arange(TOKENS)[:, None], np.arange(TOKENS)[None]


def work(dtype: str = "float32", mask: str = MASK, **sizes: int) -> Workload:
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 16} | sizes
    return Workload(TOKENS, dtype=dtype, mask=mask, **sizes)


def allowed(attention: Workload) -> Array:
    return attention.allowed(range(attention.seq), range(attention.kv_seq)).astype(float)


def attending(weights: Array) -> Callable[..., Any]:
    """A dense attention in which pairs count as often as the weights say."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        number = torch.float64 if q.dtype == torch.float64 else torch.float32
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).to(number) for x in (k, v))
        scores = q.to(number) @ k.mT * q.shape[-1] ** -0.5
        scores = scores + torch.tensor(weights).to(number).log()
        p = torch.exp(scores - scores.amax(-1, keepdim=True).clamp_min(-1e30))
        return (p / p.sum(-1, keepdim=True).clamp_min(1e-30) @ v).to(q.dtype)

    return attend


def audited(attend: Callable[..., Any], attention: Workload) -> Report:
    return audit_rank(attend, Case(attention, 1, (np.arange(attention.seq),)))


def kinds(report: Report) -> set[str]:
    assert report.could_not_run is None
    return {fault.kind for fault in report.faults}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_right_attention_is_exact(dtype: str) -> None:
    report = audited(attending(allowed(work())), work(dtype))
    assert report.exact, report.faults
    assert report.wanted is not None
    for shown in report.computed:
        assert shown.lanes == (1 if shown.tensor in ("dk", "dv") else 2)
    np.testing.assert_array_equal(report.computed[0].matrix, report.wanted)


def test_a_function_of_another_order_of_axes_is_audited() -> None:
    def flash(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
        out = attending(allowed(work("float32", "causal" if causal else "full")))
        return out(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None

    assert audited(flash_shaped(flash, causal=True), work(mask="causal")).exact
    assert kinds(audited(flash_shaped(flash, causal=False), work(mask="causal"))) == {
        "mask ignored"
    }


def planted(change: str) -> Array:
    weights = allowed(work())
    match change:
        case "attended twice":
            weights[40, 35] += 1
        case "document leak":
            weights[30, 20] = 1
        case "keys lost":
            weights[30, 28] = 0
        case "block lost":
            weights[36:, 30:36] = 0
        case "off by one":
            weights = allowed(work(mask="documents:10,15,23 & window:9,1"))
        case "window ignored":
            weights = allowed(work(mask="causal & documents:10,15,23"))
        case "window one-sided":
            weights = allowed(work(mask="documents:10,15,23 & window:9,inf"))
        case "wrong weights":
            weights[:, TOKENS // 2 :] *= 3.3
        case "mask ignored":
            weights = allowed(work(mask="full"))
    return weights


KINDS = (
    "attended twice",
    "document leak",
    "keys lost",
    "block lost",
    "off by one",
    "window ignored",
    "window one-sided",
    "wrong weights",
    "mask ignored",
)


@pytest.mark.parametrize(("kind", "dtype"), square(KINDS, ("float32", "bfloat16"), every=2))
def test_a_planted_fault_is_named(kind: str, dtype: str) -> None:
    report = audited(attending(planted(kind)), work(dtype))
    assert kinds(report) == {kind}
    wrong = np.argwhere(planted(kind) != allowed(work()))
    fault = report.faults[0]
    if kind != "wrong weights":
        assert (fault.query, fault.key) == tuple(wrong[0])
        assert fault.pairs == len(wrong)


def changed(change: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> Callable[..., Any]:
    """A dense attention of inputs that are changed first."""
    plain = attending(allowed(work()))
    return lambda q, k, v: plain(*change(q, k, v))


class Half(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        gradient = gradient.clone()
        gradient[:, 0] = 0
        return gradient


LAST: list[Any] = []


def late(q: Any, k: Any, v: Any) -> Any:
    """The values of the call before, in the second half."""
    LAST.append(v.detach().clone())
    before = LAST[-2] if len(LAST) > 1 else v
    v = torch.cat([v[:, :, :24], before[:, :, 24:]], 2)
    return attending(allowed(work()))(q, k, v)


def late_keys(q: Any, k: Any, v: Any) -> Any:
    """The keys of the call before, and the values of this one."""
    LAST.append(k.detach().clone())
    return attending(allowed(work()))(q, LAST[-2] if len(LAST) > 1 else k, v)


def from_memory(q: Any, k: Any, v: Any) -> Any:
    total = torch.empty_like(v.repeat_interleave(2, 1))  # never set to zero
    return attending(allowed(work()))(q, k, v) + 0 * total


def noisy(q: Any, k: Any, v: Any) -> Any:
    out = attending(allowed(work()))(q, k, v)
    return out * (1 + 0.1 * torch.rand(1)) if q.abs().sum() else out


@pytest.mark.parametrize(
    ("attend", "kind"),
    [
        (changed(lambda q, k, v: (q * 2, k, v)), "wrong scale"),
        (changed(lambda q, k, v: (q, k, v.flip(1))), "wrong GQA group"),
        (changed(lambda q, k, v: (Half.apply(q), k, v)), "gradient lost"),
        (changed(lambda q, k, v: (q, k, v.detach())), "gradient lost"),
        (changed(lambda q, k, v: (q, k * 2 - k.detach(), v)), "gradient scaled"),
        (late, "stale keys"),
        (late_keys, "stale keys"),
        (remembers(attending(allowed(work()))), "depends on calls"),
        (calibrated(attending(allowed(work()))), "depends on calls"),
        (noisy, "changes between runs"),
        (lambda q, k, v: attending(allowed(work()))(q, k, v)[..., :4], "wrong shape"),
        (lambda q, k, v: attending(allowed(work()))(q, k, v).double(), "wrong dtype"),
        (lambda q, k, v: {}["no such"], "crash"),
        (lambda q, k, v: attending(allowed(work()))(q, k.bfloat16().float(), v), "imprecise"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_faults_of_more_than_pairs_are_named(attend: Callable[..., Any], kind: str) -> None:
    LAST.clear()
    assert kind in kinds(audited(attend, work(kv_heads=2)))


def test_results_of_uninitialised_memory_are_seen() -> None:
    """Where the memory itself differs from call to call, nothing more can be told."""
    named = kinds(audited(from_memory, work()))
    assert named & {"depends on memory", "changes between runs"}


LAYOUTS = "contiguous", "zigzag", "striped", "per-document", "random"


@pytest.mark.parametrize(("layout", "ranks"), square(LAYOUTS, (1, 2, 3, 5, 8), every=2))
@pytest.mark.parametrize("mask", ["causal", "causal & documents:13,30,27"])
def test_layouts_are_detected(layout: str, ranks: int, mask: str) -> None:
    attention = Workload(70, heads=1, head_dim=8, dtype="float32", mask=mask)
    if layout == "random":
        q = tuple(np.array_split(np.random.default_rng(0).permutation(70), ranks))
    else:
        q = tuple(by_tokens(attention, ranks, layout).q.shards(ranks))
    order = np.concatenate(q)
    asker = OneProcess(attention.allowed(order, order), Case(attention, ranks))
    detected = detect(asker.case, asker.ask, asker.change)
    for one, other in zip(detected.case.q or (), q, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_layout_is_invisible_under_a_full_mask() -> None:
    attention = Workload(64, heads=1, head_dim=8, dtype="float32", mask="full")
    asker = OneProcess(np.ones((64, 64), bool), Case(attention, 4))
    assert "cannot be distinguished" in detect(asker.case, asker.ask, asker.change).ambiguities[0]


class OneProcess:
    """All ranks of a dense attention of slots, asked at once."""

    def __init__(self, pairs: Array, case: Case) -> None:
        self.attend, self.case = attending(pairs.astype(float)), case

    def change(self, case: Case) -> None:
        self.case = case

    def ask(self, question: Question) -> Answer:
        q, k, v = (torch.tensor(x) for x in inputs(self.case, question).values())
        return Answer(self.attend(q, k, v).numpy())


PLANNED = """
import torch.distributed as dist
from ringloom.planner.planning import plan
from ringloom.planner.layouts import by_tokens
from ringloom.planner.workload import Workload
from ringloom.runtimes.emitted import load, source_of

def attend(q, k, v, group):
    work = Workload(48, heads=2, kv_heads=1, head_dim=8, dtype="float32")
    program = load(source_of(plan("zigzag", work, 3, pass_="both"), "torch"))
    return program.attention(q, k, v, group=group)

def faulty(q, k, v):
    return attend(q, k, v * (1 + (dist.get_rank() == 1)), dist.group.WORLD)

def stuck(q, k, v):
    if dist.get_rank() == 1:
        dist.recv(q.clone(), 2)
    return attend(q, k, v, dist.group.WORLD)
"""


@pytest.mark.parametrize("name", ["attend", "faulty", "stuck"])
def test_processes_are_launched(name: str, tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(PLANNED)
    attention = Workload(48, heads=2, kv_heads=1, head_dim=8, dtype="float32")
    case = Case(attention, 3, tuple(by_tokens(attention, 3, "zigzag").q.shards(3)))
    report = launch(f"{tmp_path}/peer.py:{name}", case, timeout=15 if name == "stuck" else 60)
    match name:
        case "attend":
            assert report.exact, report
            assert report.sent["forward"].sum() > 0
        case "faulty":
            assert report.faults[0].kind == "unmerged partials"
        case "stuck":
            assert kinds(report) == {"hang"}
            assert "in stuck" in report.faults[0].sentence or "stuck:" in report.faults[0].sentence
