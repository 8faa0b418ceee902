"""Emitted torch programs against dense attention, the plan's own messages, and their own check."""

import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import emit
from planner.ir import Plan
from planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Prefix, Window
from planner.planning import Pair, plan
from planner.schedules import SCHEDULES
from planner.workload import Workload
from runtimes import dense
from runtimes.arrays import Array, draw, shapes
from runtimes.validation import EXACT, backward_leaks, distance, forward_leaks
from strategies import schedules, workloads

torch = pytest.importorskip("torch")

from runtimes import torch_ranks  # noqa: E402  only where torch is

RUFF = Path(sys.executable).with_name("ruff")
FEW = settings(max_examples=max(10, settings.default.max_examples // 4))
CASES = settings(max_examples=max(200, settings.default.max_examples))
in_threads = partial(torch_ranks.run, vehicle="threads", timeout=30.0)
MASKS: list[Mask] = [
    Causal(),
    Full(),
    Window(6),
    Window(3, 4) | Global(2),
    Prefix(9),
    Causal() & Documents((20, 5, 38)),
    Blocks(((True, False), (True, True)), 32),
]


def both(schedule: str, work: Workload, ranks: int) -> Pair:
    return plan(schedule, work, ranks, pass_="both")


def errors(pair: Pair, arrays: tuple[Array, ...]) -> tuple[float, list[float]]:
    """Largest errors of out, and of dq, dk and dv."""
    work = pair[0].workload
    q, k, v, dout = arrays
    out, *gradients = in_threads(pair, q, k, v, dout)
    truth = dense.backward(work, q, k, v, dout)
    return distance(out, dense.forward(work, q, k, v)[0]), list(map(distance, gradients, truth))


def assert_exact(pair: Pair, seed: int = 0) -> None:
    work = pair[0].workload
    out, gradients = errors(pair, draw(work, seed))
    limits = EXACT["float64" if work.dtype == "float64" else "float32"]
    assert out <= limits[0]
    assert max(gradients) <= limits[1]


@CASES
@given(st.data(), st.integers(1, 8), workloads(), st.integers(0, 99))
def test_programs_are_exact_in_float64(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    assert_exact(both(data.draw(schedules(ranks)), work, ranks), seed)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("schedule", [*SCHEDULES, "striped:grain=4", "allgather:keep=1"])
def test_every_schedule_and_mask_is_exact(schedule: str, mask: Mask) -> None:
    work = Workload(seq=63, heads=4, kv_heads=2, head_dim=8, mask=mask, dtype="float64")
    assert_exact(both(schedule, work, 4))


@FEW
@given(st.data(), st.integers(1, 4), workloads(dtype="float32"), st.integers(0, 99))
def test_programs_are_exact_in_float32(
    data: st.DataObject, ranks: int, work: Workload, seed: int
) -> None:
    assert_exact(both(data.draw(schedules(ranks)), work, ranks), seed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("schedule", ["ring", "zigzag", "burst", "ulysses", "balanced"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_16_bit_errors_do_not_grow_with_the_ranks(schedule: str, dtype: str, ranks: int) -> None:
    work = Workload(seq=256, heads=4, kv_heads=2, head_dim=32, mask=Causal(), dtype=dtype)
    arrays = draw(work, 1)
    out, gradients = errors(both(schedule, work, ranks), arrays)
    truth = (dense.forward(work, *arrays[:3])[0], *dense.backward(work, *arrays))
    own = dense_in_torch(work, arrays)
    for error, a, b in zip([out, *gradients], own, truth, strict=True):
        assert error <= 1.1 * distance(a, b)


@pytest.mark.parametrize("schedule", ["zigzag", "burst"])
@pytest.mark.parametrize(("dtype", "powers"), [("float16", (-9, 9)), ("float32", (-90, 90))])
def test_gradients_grow_and_shrink_with_those_of_the_output(
    schedule: str, dtype: str, powers: tuple[int, int]
) -> None:
    work = Workload(seq=32, heads=2, head_dim=8, mask=Causal(), dtype=dtype)
    pair, (q, k, v, dout) = both(schedule, work, 2), draw(work, 3)
    plain = in_threads(pair, q, k, v, dout)[1:]
    for power in powers:
        found = in_threads(pair, q, k, v, np.ldexp(dout, power))[1:]
        for a, b in zip(found, plain, strict=True):
            assert distance(np.ldexp(a, -power), b) <= (2e-5 if dtype == "float32" else 1e-2)


def dense_in_torch(work: Workload, arrays: tuple[Array, ...]) -> list[Array]:
    """Output and gradients of PyTorch's own attention in the workload's dtype."""
    q, k, v, dout = map(torch_ranks.to_torch, arrays)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    sees = torch.from_numpy(work.allowed(range(work.seq), range(work.kv_seq)))
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(*inputs, attn_mask=sees, scale=work.softmax_scale, enable_gqa=True)
    out.backward(dout)
    return [torch_ranks.to_numpy(x) for x in (out, *(x.grad for x in inputs))]


@pytest.mark.parametrize("schedule", ["zigzag", "burst", "usp:ulysses=2"])
@pytest.mark.parametrize("mask", [Causal(), Window(5)], ids=str)
def test_nothing_leaks_through_the_mask(schedule: str, mask: Mask) -> None:
    work = Workload(seq=37, heads=2, kv_heads=1, head_dim=4, mask=mask, dtype="float64")
    pair = both(schedule, work, 4)
    assert forward_leaks(work, partial(in_threads, pair[0])) == []
    assert backward_leaks(work, partial(in_threads, pair)) == []


# ---- messages


class Recorder:
    """Counts what goes through a program's `exchange`."""

    def __init__(self) -> None:
        self.sent = Counter[tuple[int, int, int]]()  # source, destination, bytes
        self.lock = threading.Lock()

    def __call__(self, program: ModuleType) -> None:
        plain = program.exchange

        def exchange(sends: list[Any], receives: list[Any], group: Any) -> list[Any]:
            with self.lock:
                for message, peer in sends:
                    self.sent[group.rank(), peer, sum(x.nbytes for x in message)] += 1
            return list(plain(sends, receives, group))

        program.exchange = exchange  # type: ignore[attr-defined]


def planned(plans: tuple[Plan, ...]) -> Counter[tuple[int, int, int]]:
    """The messages of the plans: (source, destination, bytes) and how often."""
    found = Counter[tuple[int, int, int]]()
    for one in plans:
        sizes = {tensor: np.append(one.block_bytes(tensor), 0) for tensor in one_tensors(one)}
        for _, move in one.moves():
            size = sum(sizes[tensor][move.blocks].sum(axis=1) for tensor in move.tensors)
            found.update(zip(move.src.tolist(), move.dst.tolist(), size.tolist(), strict=True))
    return found


def one_tensors(one: Plan) -> set[str]:
    return {tensor for _, move in one.moves() for tensor in move.tensors}


@FEW
@given(st.data(), st.integers(2, 6), workloads(dtype="float32", longest=24))
def test_sent_messages_and_bytes_are_the_plan_s(
    data: st.DataObject, ranks: int, work: Workload
) -> None:
    pair, recorder = both(data.draw(schedules(ranks)), work, ranks), Recorder()
    torch_ranks.in_threads(emit(pair, "torch"), ranks, list(draw(work, 0)), 30.0, recorder)
    assert recorder.sent == planned(pair)


def test_a_ring_sends_one_message_fewer_than_ranks() -> None:
    work = Workload(seq=64, heads=2, head_dim=4, mask=Full(), dtype="float64")
    pair, recorder = plan("ring", work, 4), Recorder()
    torch_ranks.in_threads(emit(pair, "torch"), 4, list(draw(work, 0)[:3]), 30.0, recorder)
    assert recorder.sent.total() == 4 * 3


# ---- the contract of the file


@pytest.mark.parametrize("schedule", ["ring", "zigzag"])
def test_source_reads_like(schedule: str, golden: Callable[[str], None]) -> None:
    work = Workload(seq=4096, heads=8, kv_heads=2, head_dim=64, mask=Causal(), dtype="bfloat16")
    golden(emit(both(schedule, work, 8), "torch"))


EMITTED = [
    ("ring", Causal(), 4),
    ("zigzag", Window(9), 4),
    ("burst", Causal(), 4),
    ("balanced", Full(), 4),
    ("allgather:keep=1", Causal(), 4),
    ("usp:ulysses=2", Causal(), 4),
    ("ulysses", Documents((30, 33)), 3),
    ("striped:grain=4", Causal(), 3),
    ("zigzag", Causal() & Documents((20, 5, 38)), 3),
    ("striped", Window(3), 5),
    ("zigzag", Causal(), 40),
]


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize("length", [88, 100])
def test_emitted_files_are_formatted_and_free_of_lint(length: int, tmp_path: Path) -> None:
    for number, (schedule, mask, ranks) in enumerate(EMITTED):
        work = Workload(seq=63, heads=6, kv_heads=3, head_dim=8, mask=mask)
        for passes in (both(schedule, work, ranks), plan(schedule, work, ranks)):
            name = f"{number}-{len(passes) if isinstance(passes, tuple) else 1}.py"
            (tmp_path / name).write_text(emit(passes, "torch"))
    for number, scale in enumerate((-0.3, 0.0)):
        work = Workload(seq=63, heads=6, kv_heads=3, head_dim=8, scale=scale)
        (tmp_path / f"scale-{number}.py").write_text(emit(both("ring", work, 4), "torch"))
    option = ["--isolated", "--line-length", str(length)]
    for command in (["check", *option], ["format", "--diff", *option]):
        done = subprocess.run([RUFF, *command, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_program_imports_nothing_of_this_project() -> None:
    source = emit(both("zigzag", Workload(seq=64), 4), "torch")
    for package in ("planner", "codegen", "runtimes", "simulator", "ringloom"):
        assert f"import {package}" not in source
        assert f"from {package}" not in source


@FEW
@given(st.data(), st.integers(1, 8), workloads())
def test_shards_come_together_again(data: st.DataObject, ranks: int, work: Workload) -> None:
    made = plan(data.draw(schedules(ranks)), work, ranks)
    program = torch_ranks.load(emit(made, "torch"))
    for name, at in (("q", program.positions), ("k", program.kv_positions)):
        x = torch.from_numpy(np.random.default_rng(0).normal(size=shapes(work)[name]))
        flags = {} if name == "q" or work.seq != work.kv_seq else {"kv": True}
        flags = flags if "kv=False" in emit(made, "torch") else {}
        parts = [program.shard(x, rank, **flags) for rank in range(ranks)]
        assert torch.equal(program.unshard(parts, **flags), x)
        for rank, part in enumerate(parts):
            assert torch.equal(part, x[:, :, at(rank)])
    positions = [program.positions(rank).tolist() for rank in range(ranks)]
    assert positions == [made.partition.q.positions(rank).tolist() for rank in range(ranks)]


def test_plan_says_what_the_program_is_for() -> None:
    work = Workload(seq=64, heads=4, kv_heads=2, head_dim=8, mask=Window(5), dtype="float32")
    assert torch_ranks.load(emit(plan("ring", work, 2), "torch")).PLAN == {
        "name": "ring",
        "ranks": 2,
        "seq": 64,
        "kv_seq": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "mask": "window:5",
        "dtype": "float32",
    }


def test_other_shapes_dtypes_and_groups_are_refused_by_name() -> None:
    program = torch_ranks.load(emit(plan("ring", Workload(seq=8, heads=2, head_dim=4), 1), "torch"))
    group = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    right = torch.zeros(1, 2, 8, 4)
    whole = right.long()
    for inputs, said in (
        ((right, right[:, :, :7], right), r"k of rank 0 is \[1, 2, 7, 4\], not \[batch, 2, 8, 4\]"),
        ((right[0], right, right), r"q of rank 0 is \[2, 8, 4\], not \[batch, 2, 8, 4\]"),
        ((right, right, right[:0]), "differ in batch: 1, 1, 0"),
        ((right, right, right.double()), "differ in dtype: torch.float32, .*float64"),
        ((whole, whole, whole), "are torch.int64, not floats of 16 bits"),
        ((right, right.to("meta"), right), "differ in device: cpu, meta, cpu"),
    ):
        with pytest.raises(ValueError, match=said):
            program.attention(*inputs, group=group)
    with pytest.raises(ValueError, match=r"None is no process group: call torch.*init_process"):
        program.attention(right, right, right)
    program.P = 2
    with pytest.raises(ValueError, match="a program for 2 ranks, but the group has 1"):
        program.attention(right, right, right, group=group)


def test_second_derivatives_are_refused() -> None:
    work = Workload(seq=8, heads=2, head_dim=4, dtype="float64")
    program = torch_ranks.load(emit(both("ring", work, 1), "torch"))
    group = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    x = torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True)
    out = program.attention(x, x, x, group=group)
    with pytest.raises(RuntimeError, match="first derivatives only: no create_graph=True"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_a_forward_only_program_refuses_gradients() -> None:
    work = Workload(seq=8, heads=2, head_dim=4, dtype="float64")
    program = torch_ranks.load(emit(plan("ring", work, 1), "torch"))
    group = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    q, k, v = (torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    out = program.attention(q, k, v, group=group)
    with pytest.raises(NotImplementedError, match="without a backward plan"):
        out.sum().backward()


def test_inputs_may_have_any_strides() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    program = torch_ranks.load(emit(both("zigzag", work, 1), "torch"))
    group = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    plain = torch.randn(1, 2, 16, 4, dtype=torch.float64, requires_grad=True)
    wanted = program.attention(plain, plain, plain, group=group)
    (gradient,) = torch.autograd.grad(wanted.sum(), plain)
    for dims in ((1, 2), (2, 3), (0, 3)):
        x = plain.transpose(*dims).contiguous().transpose(*dims)
        found = program.attention(x, x, x, group=group)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)
        (found_gradient,) = torch.autograd.grad(found.sum(), plain)
        torch.testing.assert_close(found_gradient, gradient, rtol=0, atol=1e-13)


def test_checkpointing_gives_the_same_gradients() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    program = torch_ranks.load(emit(both("zigzag", work, 1), "torch"))
    group = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    q = torch.randn(1, 2, 16, 4, dtype=torch.float64, requires_grad=True)

    def layer(x: Any) -> Any:
        return program.attention(x.sin(), x, x, group=group).cos()

    (plain,) = torch.autograd.grad(layer(q).sum(), q)
    again = torch.utils.checkpoint.checkpoint(layer, q, use_reentrant=False)
    (saved,) = torch.autograd.grad(again.sum(), q)
    assert torch.equal(plain, saved)


def test_a_group_that_nobody_else_holds_is_let_go_of() -> None:
    work = Workload(seq=8, heads=2, head_dim=4, dtype="float64")
    program = torch_ranks.load(emit(both("zigzag", work, 1), "torch"))
    group = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    q = torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True)
    program.attention(q, q, q, group=group).sum().backward()
    held = weakref.ref(group)
    del group
    assert held() is None


@pytest.mark.parametrize(("schedule", "tensors"), [("allgather:keep=1", 9), ("zigzag", 5)])
def test_all_that_backward_needs_is_saved_where_checkpoints_find_it(
    schedule: str, tensors: int
) -> None:
    work = Workload(seq=16, heads=2, head_dim=4, mask=Full(), dtype="float64")
    seen = Counter[int]()

    def body(program: ModuleType, group: Any, arrays: Any) -> list[Array]:
        def noted(x: Any) -> Any:
            seen[group.rank()] += 1
            return x.clone()

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
            return torch_ranks.attend(program, group, arrays)

    torch_ranks.in_threads(
        emit(both(schedule, work, 2), "torch"), 2, list(draw(work, 0)), 30.0, body=body
    )
    assert seen == {0: tensors, 1: tensors}


# ---- files as scripts


def script(tmp_path: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(source)
    command = [sys.executable, str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)


def small(mask: Mask) -> Workload:
    return Workload(seq=96, heads=4, kv_heads=2, head_dim=8, mask=mask)


def test_a_file_checks_itself(tmp_path: Path) -> None:
    done = script(tmp_path, emit(both("zigzag", small(Causal()), 2), "torch"), "--seq", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact at 50 queries" in done.stdout


def test_a_file_for_one_length_checks_itself_at_that_length(tmp_path: Path) -> None:
    source = emit(both("burst", small(Documents((40, 56))), 2), "torch")
    done = script(tmp_path, source)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact at 96 queries" in done.stdout
    refused = script(tmp_path, source, "--seq", "50")
    assert refused.returncode == 2
    assert "for --seq 96 only" in refused.stderr


def test_a_dtype_that_no_program_knows_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = script(tmp_path, emit(both("ring", small(Causal()), 2), "torch"), "--dtype", "int32")
    assert done.returncode == 2
    assert "choose from" in done.stderr
    assert "bfloat16" in done.stderr


SABOTAGE = {
    "a wrong mask": ("side=\"right\")", "side=\"left\")"),
    "no merging": ("    out.lerp_(o.to(out.dtype), weight)\n", ""),
    "a lost gradient": ("[dk, dv], columns)", "[dk, dk], columns)"),
    "a missing name": ("def merge(", "def merge_("),
}  # fmt: skip


@pytest.mark.parametrize("what", SABOTAGE)
def test_a_sabotaged_file_fails_its_check(what: str, tmp_path: Path) -> None:
    source = emit(both("zigzag", small(Causal()), 2), "torch")
    old, new = SABOTAGE[what]
    assert old in source
    done = script(tmp_path, source.replace(old, new))
    assert done.returncode == 1, done.stdout + done.stderr
