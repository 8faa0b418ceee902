"""Emitted torch files by their contract: names, errors, autograd, and the file as a script."""

import os
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringloom.codegen import emit
from ringloom.planner.masks import Causal, Documents, Full, Mask, Window
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw, shapes
from strategies import schedules, workloads

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  only where torch is

from rank_threads import in_threads, load, self_check  # noqa: E402  only where torch is
from ringloom.runtimes.torch.rank import run_attention  # noqa: E402

FEW = settings(max_examples=max(10, settings.default.max_examples // 4))
TINY = Workload(seq=8, heads=2, head_dim=4, dtype="float64")


def both(schedule: str, work: Workload, ranks: int) -> Plans:
    return plan(schedule, work, ranks, pass_="both")


def alone(program: ModuleType, body: Any) -> Any:
    """Return the result of `body(group)` on the only rank."""
    return in_threads(1, body)[0]


def small(mask: Mask) -> Workload:
    return Workload(seq=96, heads=4, kv_heads=2, head_dim=8, mask=mask)


def test_a_program_imports_nothing_of_this_project() -> None:
    source = emit(both("zigzag", Workload(seq=64), 4), "torch")
    for package in ("planner", "codegen", "runtimes", "simulator", "ringloom"):
        assert f"import {package}" not in source
        assert f"from {package}" not in source


@FEW
@given(st.data(), st.integers(1, 8), workloads())
def test_shards_come_together_again(data: st.DataObject, ranks: int, work: Workload) -> None:
    made = plan(data.draw(schedules(ranks)), work, ranks)
    program = load(emit(made, "torch"))
    for name, side in (("q", "q"), ("k", "kv")):
        x = torch.from_numpy(np.random.default_rng(0).normal(size=shapes(work)[name]))
        parts = [program.shard(x, rank, side=side) for rank in range(ranks)]
        assert torch.equal(program.unshard(parts, side=side), x)
        for rank, part in enumerate(parts):
            at = getattr(program, "kv_positions", program.positions) if name == "k" else None
            assert torch.equal(part, x[:, :, (at or program.positions)(rank)])
    own = [program.positions(rank).tolist() for rank in range(ranks)]
    assert own == [made.partition.q.positions(rank).tolist() for rank in range(ranks)]


# ---- what is refused


def test_other_shapes_dtypes_and_groups_are_refused_by_name() -> None:
    work = Workload(seq=8, heads=2, head_dim=4, mask=Window(3))
    program = load(emit(plan("ring", work, 1), "torch"))
    right = torch.zeros(1, 2, 8, 4)
    for inputs, said in (
        ((right, right[:, :, :7], right), "k"),
        ((right[0], right, right), "q"),
        ((right, right, right[:0]), "v"),
        ((right, right, right.double()), "float64"),
        ((right.long(), right.long(), right.long()), "int64"),
        ((right, right.to("meta"), right), "meta"),
    ):
        with pytest.raises(ValueError, match=said):
            alone(program, lambda group, x=inputs: program.attention(*x, group=group))
    with pytest.raises(ValueError, match=r"1 ranks?.* 2"):
        in_threads(2, lambda group: program.attention(right, right, right, group=group))


def test_second_derivatives_are_refused() -> None:
    program = load(emit(both("ring", TINY, 1), "torch"))
    x = torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True)

    def body(group: Any) -> None:
        out = program.attention(x, x, x, group=group)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        slope.sum().backward()

    with pytest.raises(RuntimeError):
        alone(program, body)


def test_a_forward_only_program_refuses_gradients() -> None:
    program = load(emit(plan("ring", TINY, 1), "torch"))
    q, k, v = (torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv")

    def body(group: Any) -> None:
        program.attention(q, k, v, group=group).sum().backward()

    with pytest.raises((RuntimeError, NotImplementedError)):
        alone(program, body)


# ---- autograd


def test_inputs_may_have_any_strides() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    program = load(emit(both("zigzag", work, 1), "torch"))
    plain = torch.randn(1, 2, 16, 4, dtype=torch.float64, requires_grad=True)

    def slope(x: Any) -> Any:
        def body(group: Any) -> tuple[Any, Any]:
            out = program.attention(x, x, x, group=group)
            return out, torch.autograd.grad(out.sum(), plain)[0]

        return alone(program, body)

    wanted, gradient = slope(plain)
    for dims in ((1, 2), (2, 3), (0, 3)):
        out, other = slope(plain.transpose(*dims).contiguous().transpose(*dims))
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-13)
        torch.testing.assert_close(other, gradient, rtol=0, atol=1e-13)


def test_checkpointing_gives_the_same_gradients() -> None:
    work = Workload(seq=16, heads=2, head_dim=4, dtype="float64")
    program = load(emit(both("zigzag", work, 2), "torch"))
    x = torch.randn(1, 2, 16, 4, dtype=torch.float64)

    def body(group: Any) -> tuple[Any, Any]:
        q = program.shard(x, group.rank()).requires_grad_()

        def layer(x: Any) -> Any:
            return program.attention(x.sin(), x, x, group=group).cos()

        (plain,) = torch.autograd.grad(layer(q).sum(), q)
        again = torch.utils.checkpoint.checkpoint(layer, q, use_reentrant=False)
        return plain, torch.autograd.grad(again.sum(), q)[0]

    for plain, saved in in_threads(2, body):
        torch.testing.assert_close(plain, saved, rtol=0, atol=1e-13)


def test_a_group_that_nobody_else_holds_is_let_go_of() -> None:
    program = load(emit(both("zigzag", TINY, 1), "torch"))
    q = torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True)

    def body(group: Any) -> Any:
        program.attention(q, q, q, group=group).sum().backward()
        return weakref.ref(group)

    assert alone(program, body)() is None


@pytest.mark.parametrize("schedule", ["allgather:keep=1", "zigzag", "usp:ulysses=2"])
def test_all_that_backward_needs_is_saved_where_checkpoints_find_it(schedule: str) -> None:
    work = Workload(seq=16, heads=4, head_dim=4, mask=Full(), dtype="float64")
    program, seen = load(emit(both(schedule, work, 2), "torch")), Counter[int]()
    arrays = list(draw(work, 0))

    def body(group: Any) -> Any:
        def noted(x: Any) -> Any:
            seen[group.rank()] += x.nbytes
            return x.clone()

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
            return run_attention(program, group, arrays)

    in_threads(2, body)
    own = 4 * 8 * 4 * 8  # q, k, v or out of a rank
    lse = 4 * 8 * 8
    kept = {"allgather:keep=1": 2 * own, "zigzag": 0, "usp:ulysses=2": 4 * own + lse}[schedule]
    assert set(seen) == {0, 1}
    assert all(4 * own + lse <= size <= 4 * own + lse + kept for size in seen.values())


def test_a_program_for_any_length_is_exported_for_any_length() -> None:
    program = load(emit(both("zigzag", TINY, 1), "torch"))

    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return program.attention(x, x, x)

    def body(_: Any) -> None:
        tokens = {2: 2 * torch.export.Dim("half", min=2, max=64)}
        x = torch.randn(1, 2, 8, 4, dtype=torch.float64)
        exported = torch.export.export(Model(), (x,), dynamic_shapes=[tokens]).module()
        for longer in (x, torch.cat([x, x], 2)):
            assert torch.equal(exported(longer), Model()(longer))

    alone(program, body)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [("zigzag", 2), ("allgather:keep=1", 2), ("usp:ulysses=2", 2), ("ulysses", 4)],
)
def test_compilers_are_told_the_shapes_of_what_comes_out(
    schedule: str, ranks: int, sinks: bool
) -> None:
    """Where copies are kept for the backward pass, these are results of the operator, too."""
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 4, "v_head_dim": 6 if sinks else 4}
    work = Workload(seq=16, dtype="float64", sinks=sinks, **sizes)
    program, arrays = load(emit(both(schedule, work, ranks), "torch")), draw(work, 0)[:3]
    logits = [torch.zeros(4, dtype=torch.float64)] * sinks

    def body(group: Any) -> None:
        sided = zip(map(torch.from_numpy, arrays), ("q", "kv", "kv"), strict=True)
        inputs = *(program.shard(x, group.rank(), side=side) for x, side in sided), *logits
        real = program.forward(*inputs, group.group_name, "", "", -1)
        with FakeTensorMode() as mode:
            fake = program.forward(*map(mode.from_tensor, inputs), group.group_name, "", "", -1)
        told, given = ([(x.shape, x.dtype) for x in results] for results in (fake, real))
        assert told == given

    in_threads(ranks, body)


# ---- files as scripts


def script(tmp_path: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(source)
    command = [sys.executable, str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)


def test_a_file_checks_itself(tmp_path: Path) -> None:
    done = script(tmp_path, emit(both("zigzag", small(Causal()), 2), "torch"), "--seq", "52")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "52" in done.stdout


def test_a_file_for_one_length_checks_itself_at_that_length(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = emit(both("burst", small(Documents((40, 56))), 2), "torch")
    self_check(source)
    assert capsys.readouterr().out.startswith("seq 96, largest errors: ")
    with pytest.raises(SystemExit):
        self_check(source, "--seq", "50")
    assert "--seq: invalid choice: 50 (choose from 96)" in capsys.readouterr().err


@pytest.mark.parametrize("schedule", ["zigzag", "striped", "mesh2d", "decode-a2a", "broadcast"])
def test_a_file_for_any_length_is_exact_at_others(schedule: str) -> None:
    work = Workload(seq=32, heads=4, kv_heads=2, head_dim=8, mask=Causal(), dtype="float64")
    source = emit(both(schedule, work, 4), "torch")
    assert "any sequence length" in source
    self_check(source, "--seq", "80")


@pytest.mark.parametrize(("schedule", "least"), [("ring", 4), ("zigzag", 8), ("striped", 8)])
def test_a_file_for_any_length_says_and_takes_the_shortest(schedule: str, least: int) -> None:
    """Of one token that stripes leave the diagonal out of, no kernel can be called."""
    work = Workload(seq=32, heads=4, kv_heads=2, head_dim=8, mask=Causal(), dtype="float64")
    source = emit(both(schedule, work, 4), "torch")
    assert (f"and at least {least}" in " ".join(source.split())) == (schedule == "striped")
    self_check(source, "--seq", str(least))
    with pytest.raises(ValueError, match=r"\[1, 4, 1, 8\]|^(3|4) tokens"):
        self_check(source, "--seq", str(least - (1 if schedule == "ring" else 4)))
    q = torch.zeros(1, 4, 0, 8)
    with pytest.raises(ValueError, match=r"\[1, 4, 0, 8\].* not torch.float32 \[1, 4, [12], 8\]"):
        in_threads(4, lambda group: load(source).attention(q, q, q, group=group))


@pytest.mark.parametrize("schedule", ["ring", "zigzag", "striped", "ulysses"])
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_a_plan_for_pieces_of_one_token_goes_for_its_length_alone(
    schedule: str, target: str
) -> None:
    """There a causal rectangle is a full one, so it says nothing of longer pieces."""
    pieces = 8 if schedule == "zigzag" else 4
    work = Workload(seq=pieces, heads=4, head_dim=8, mask=Causal(), dtype="float64")
    assert "any sequence length" not in emit(both(schedule, work, 4), target)


SUNK = Workload(seq=40, heads=4, kv_heads=2, head_dim=8, v_head_dim=4, sinks=True, dtype="float64")


@pytest.mark.parametrize("schedule", ["zigzag", "usp:ulysses=2", "pass-q"])
def test_a_file_checks_its_sinks_and_its_values(
    schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = emit(both(schedule, SUNK, 4), "torch")
    self_check(source)
    assert len(capsys.readouterr().out.partition("errors:")[2].split()) == 5
    for old, new in (
        ("weights * delta", "weights + delta"),
        ("dv[..., :V_HEAD_DIM]", "dv[..., :1]"),
    ):
        assert old in source
        with pytest.raises((AssertionError, RuntimeError, ValueError)):
            self_check(source.replace(old, new))


def test_sinks_are_asked_for_and_their_number_is_looked_at() -> None:
    program = load(emit(plan("ring", SUNK, 1), "torch"))
    q, k, v = (torch.zeros(1, heads, 40, dim) for heads, dim in ((4, 8), (2, 8), (2, 4)))
    for more, said in (
        ({}, r"\[heads\], not None"),
        ({"sinks": torch.zeros(3)}, r"\[heads\], not \[3\]"),
    ):
        with pytest.raises(ValueError, match=said):
            in_threads(1, lambda group, x=more: program.attention(q, k, v, group=group, **x))


SABOTAGE = {
    "a lost gradient": ("narrow([*dq, *dkv], q)", "narrow([*zeros(dq), *dkv], q)"),
    "no merging": ("lse.copy_(", "lse.add_(0.0 * "),
    "a wrong scale": ("SCALE = 8**-0.5", "SCALE = 9**-0.5"),
}


def sabotaged(what: str) -> str:
    """The text of a program, changed."""
    source = emit(both("zigzag", small(Causal()), 2), "torch")
    old, new = SABOTAGE[what]
    assert old in source
    return source.replace(old, new)


@pytest.mark.parametrize("what", SABOTAGE)
def test_a_sabotaged_program_is_not_what_it_compares_with(what: str) -> None:
    program = load(sabotaged(what))
    pairs = in_threads(
        2, lambda _: program.compare_with_dense(program.CHECKED, ("cpu", torch.float64))
    )
    assert max(torch.dist(a, b, torch.inf) for rank in pairs for a, b in rank) > 1e-3


def test_a_sabotaged_file_fails() -> None:
    with pytest.raises(AssertionError, match="not exact"):
        self_check(sabotaged("a wrong scale"))


@pytest.mark.parametrize("words", ["--steps 8", "8"])
def test_words_that_a_file_does_not_know_are_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        self_check(emit(both("zigzag", small(Causal()), 1), "torch"), *words.split())
    assert f"unrecognized arguments: {words}" in capsys.readouterr().err


def test_no_thread_of_a_group_outlives_the_check(tmp_path: Path) -> None:
    """A thread of gloo that is there when Python ends may abort the process."""
    source = emit(both("zigzag", small(Causal()), 1), "torch")
    (tmp_path / "program.py").write_text(source)
    code = """if True:
        import pathlib, program
        program.main(32)
        print("left", *(x.read_text() for x in pathlib.Path("/proc/self/task").glob("*/comm")))
    """
    here = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | here,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gloo" not in done.stdout.partition("left")[2]
