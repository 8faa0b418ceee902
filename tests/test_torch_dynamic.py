"""Emitted torch programs whose tables are an argument: one file for every plan of its ranks."""

import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import emit
from codegen.emitting import WRITERS, save_tables, tables
from planner.errors import PlanError
from planner.ir import Plan
from planner.masks import Causal, Documents, Full
from planner.planning import Pair, plan
from planner.schedules import SCHEDULES
from planner.workload import Workload
from ringloom.cli import main
from runtimes import dense
from runtimes.arrays import Array, draw
from runtimes.validation import EXACT
from strategies import masks, schedules

torch = pytest.importorskip("torch")

from rank_threads import Events, in_threads, load  # noqa: E402  only where torch is

RUFF = Path(sys.executable).with_name("ruff")
RANKS = 4
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 4, "dtype": "float64"}


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """One program; it is emitted from a plan that no test uses."""
    work = Workload(seq=8, mask=Full(), **HEADS)
    return load(emit(plan("ring", work, RANKS, pass_="both"), "torch", dynamic=True))


def found(program: ModuleType, made: Any, arrays: tuple[Array, ...]) -> list[Array]:
    """out, and where the plan has both passes dq, dk and dv, whole and in sequence order."""

    def body(group: Any) -> list[Any]:
        rank = group.rank()
        at = program.positions(rank, made), program.kv_positions(rank, made)
        parts = [
            torch.from_numpy(x[:, :, at[n]]) for x, n in zip(arrays, (0, 1, 1, 0), strict=True)
        ]
        q, k, v = (x.requires_grad_(made.both) for x in parts[:3])
        out = program.attention(q, k, v, made, group=group)
        if not made.both:
            return [out]
        out.backward(parts[3])
        return [out.detach(), q.grad, k.grad, v.grad]

    shards = in_threads(program.P, body)
    return [
        program.unshard(parts, made, kv=n > 1).numpy()
        for n, parts in enumerate(zip(*shards, strict=True))
    ]


def assert_exact(program: ModuleType, pair: Pair, made: Any, seed: int = 0) -> None:
    work = pair[0].workload
    arrays = draw(work, seed)
    out, *gradients = found(program, made, arrays)
    np.testing.assert_allclose(
        out, dense.forward(work, *arrays[:3])[0], rtol=0, atol=EXACT["float64"][0]
    )
    for mine, truth in zip(gradients, dense.backward(work, *arrays), strict=True):
        np.testing.assert_allclose(mine, truth, rtol=0, atol=EXACT["float64"][1])


def packed(batch: int) -> Pair:
    """A plan for other documents, another length and another schedule in every batch."""
    dice = random.Random(batch)
    lengths = tuple(dice.randint(1, 20) for _ in range(dice.randint(1, 6)))
    work = Workload(seq=sum(lengths), mask=Causal() & Documents(lengths), **HEADS)
    schedule = [*sorted(SCHEDULES), "allgather:keep=1", "usp:ulysses=2"][
        batch % (len(SCHEDULES) + 2)
    ]
    return plan(schedule, work, RANKS, pass_="both")


def test_twenty_batches_of_other_documents_need_one_program(
    program: ModuleType, tmp_path: Path
) -> None:
    pairs = [packed(batch) for batch in range(20)]
    assert len({pair[0].workload.mask for pair in pairs}) == 20
    assert len({pair[0].name for pair in pairs}) >= len(SCHEDULES)
    for batch, pair in enumerate(pairs):
        path = tmp_path / f"{batch}.npz"
        save_tables(tables(pair, "torch"), str(path))
        assert_exact(program, pair, program.load(path), batch)


@st.composite
def works(draw_: st.DrawFn) -> Workload:
    seq = draw_(st.integers(1, 30))
    kv_seq = draw_(st.just(seq) | st.integers(1, 30))
    return Workload(seq=seq, kv_seq=kv_seq, mask=draw_(masks(seq, kv_seq)), **HEADS)


@settings(max_examples=max(10, settings.default.max_examples // 3))
@given(st.data(), works())
def test_any_plan_of_its_ranks_is_exact(
    program: ModuleType, data: st.DataObject, work: Workload
) -> None:
    pair = plan(data.draw(schedules(RANKS)), work, RANKS, pass_="both")
    assert_exact(program, pair, program.Tables(tables(pair, "torch")))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("scale", [None, -0.5, 0.0])
def test_other_ranks_and_scales_are_exact(ranks: int, scale: float | None) -> None:
    work = Workload(seq=23, mask=Causal(), scale=scale, **HEADS)
    pair = plan("zigzag", work, ranks, pass_="both")
    program = load(emit(pair, "torch", dynamic=True))
    assert_exact(program, pair, program.Tables(tables(pair, "torch")))


def test_the_example_in_the_file_is_exact(program: ModuleType) -> None:
    made = program.example([9, 1, 13, 20])
    work = Workload(seq=43, mask=Causal() & Documents((9, 1, 13, 20)), **HEADS)
    pair = plan("ring", work, RANKS, pass_="both")
    assert_exact(program, pair, made)


def test_messages_and_bytes_are_the_plan_s() -> None:
    pair = packed(3)
    program = load(emit(pair, "torch", dynamic=True))
    events, made = Events(program), program.Tables(tables(pair, "torch"))
    found(program, made, draw(pair[0].workload, 0))
    moves = [(one, move) for one in pair for _, move in one.moves()]
    assert events["messages"] == sum(len(move.src) for _, move in moves) > 0
    assert events["bytes"] == sum(size_of(one, move) for one, move in moves)


def size_of(one: Plan, move: Any) -> int:
    """The bytes of a move's messages."""
    sizes = [np.append(one.block_bytes(tensor), 0) for tensor in move.tensors]
    return int(sum(size[move.blocks].sum() for size in sizes))


def test_tables_of_a_forward_plan_serve_inference_only(program: ModuleType) -> None:
    work = Workload(seq=21, mask=Causal(), **HEADS)
    made = program.Tables(tables(plan("burst", work, RANKS), "torch"))
    arrays = draw(work, 1)
    (out,) = found(program, made, arrays)
    np.testing.assert_allclose(out, dense.forward(work, *arrays[:3])[0], rtol=0, atol=1e-12)

    def body(group: Any) -> None:
        at = program.positions(group.rank(), made)
        q, k, v = (torch.from_numpy(x[:, :, at]).requires_grad_() for x in arrays[:3])
        program.attention(q, k, v, made, group=group).sum().backward()

    with pytest.raises(NotImplementedError, match="these tables have no backward plan"):
        in_threads(RANKS, body)


# ---- what is refused


def good() -> dict[str, Any]:
    return tables(plan("zigzag", Workload(seq=24, mask=Causal(), **HEADS), RANKS), "torch")


def other(**changes: Any) -> dict[str, Any]:
    ranks = changes.pop("ranks", RANKS)
    work = Workload(**({"seq": 24, "mask": Causal()} | HEADS | changes))
    return tables(plan("zigzag", work, ranks), "torch")


def with_entry(name: str, at: Any, value: int) -> dict[str, Any]:
    found = {key: array.copy() for key, array in good().items()}
    found[name][at] = value
    return found


BAD = {
    "tables for 3 ranks, but this program is for 4": lambda: other(ranks=3),
    r"head_dim \[8, 2, 4\] and scale 0.5, but this program is for \[4, 2, 4\] and 0.5": (
        lambda: other(heads=8)
    ),
    r"\[4, 2, 4\] and scale 2.0, but this program is for \[4, 2, 4\] and 0.5": (
        lambda: other(scale=2.0)
    ),
    "tables without mask, scale": lambda: {
        name: array for name, array in good().items() if name not in ("mask", "scale")
    },
    r"tables with mask \(\[1, 5\], 'int64'\), not \[n, \*\[6\]\] integers": (
        lambda: good() | {"mask": np.zeros((1, 5), np.int64)}
    ),
    r"tables with q_homes \(\[8\], 'float64'\)": (
        lambda: good() | {"q_homes": good()["q_homes"].astype(float)}
    ),
    "not of format 1": lambda: with_entry("sizes", 0, 9),
    r"tables with query piece \(0, 0, 3, -1\) of 24 tokens": lambda: with_entry(
        "q_pieces", (0, 3), -1
    ),
    "tables with query 3 of 24 in 0 places": lambda: with_entry("q_pieces", (1, 1), 4),
    "tables with key piece on rank 4 of 4": lambda: with_entry("kv_homes", 3, 4),
    "tables with query piece on rank -1 of 4": lambda: with_entry("q_homes", 0, -1),
    r"tables with query head slices \[\[0, 3\]\] of 4": lambda: with_entry("q_slices", (0, 1), 3),
    "tables with forward block 8 of 8": lambda: with_entry("forward_blocks", 0, 8),
    "tables with forward rows on rank 7 of 4": lambda: with_entry("forward_rows", (0, 3), 7),
    r"tables with \d+ forward blocks, not \d+": lambda: with_entry("forward_rows", (0, 5), 3),
}


@pytest.mark.parametrize("said", BAD)
def test_tables_that_do_not_fit_are_refused_with_numbers(program: ModuleType, said: str) -> None:
    program.Tables(good())
    with pytest.raises(ValueError, match=said):
        program.Tables(BAD[said]())


def test_shards_of_another_length_and_bare_arrays_are_refused(program: ModuleType) -> None:
    def tried(tokens: int, made: Any) -> None:
        def body(group: Any) -> None:
            q, kv = torch.zeros(1, 4, tokens, 4), torch.zeros(1, 2, tokens, 4)
            program.attention(q, kv, kv, made, group=group)

        in_threads(RANKS, body)

    tried(6, program.Tables(good()))
    with pytest.raises(ValueError, match=r"q of rank . is \[1, 4, 5, 4\], not \[batch, 4, 6, 4\]"):
        tried(5, program.Tables(good()))
    with pytest.raises(TypeError, match=r"Tables\(arrays\) or load\(path\), not dict"):
        tried(6, good())


def test_ranks_with_different_tables_are_refused(program: ModuleType) -> None:
    one, another = (program.Tables(other(mask=mask)) for mask in (Causal(), Full()))

    def body(group: Any) -> None:
        q, kv = torch.zeros(1, 4, 6, 4), torch.zeros(1, 2, 6, 4)
        program.attention(q, kv, kv, another if group.rank() == 2 else one, group=group)

    with pytest.raises(ValueError, match=r"rank \d has other tables than ranks \["):
        in_threads(RANKS, body)


def test_targets_without_tables_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match="no tables for 'cuda': choose one of torch"):
        tables(plan("ring", Workload(seq=8), 2), "cuda")


def test_a_kind_of_program_that_nobody_writes_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(WRITERS, ("torch", "dynamic"))
    with pytest.raises(
        PlanError, match=r"no dynamic program for torch yet; there are: .*torch layer"
    ):
        emit(plan("ring", Workload(seq=8), 2), "torch", dynamic=True)


# ---- files and the command line


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize("length", [88, 100])
def test_dynamic_files_are_formatted_and_free_of_lint(length: int, tmp_path: Path) -> None:
    for ranks, scale in ((1, None), (4, 0.3), (8, -0.3), (64, 2.0)):
        work = Workload(seq=640, heads=32, kv_heads=8, scale=scale)
        source = emit(plan("zigzag", work, ranks), "torch", dynamic=True)
        (tmp_path / f"{ranks}.py").write_text(source)
    option = ["--isolated", "--line-length", str(length)]
    for command in (["check", *option], ["format", "--diff", *option]):
        done = subprocess.run([RUFF, *command, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


OPTIONS = ["--ranks", "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "4", "--seq"]


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("", "", 0, "exact at 90 queries"),
        ("self.offset, self.mask)", "self.offset, self.mask[:1])", 1, "WRONG at 90 queries"),
    ],
)
def test_a_dynamic_file_checks_itself_by_tables_of_the_command_line(
    old: str, new: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = tmp_path / "tables.npz", tmp_path / "program.py"
    assert main(["emit", "torch", "ring", *OPTIONS, "40", "--dynamic", "-o", str(path)]) == 0
    capsys.readouterr()
    mask = ["--mask", "causal & documents:50,40"]
    command = ["tables", "torch", "balanced", *OPTIONS, "90", *mask, "-o", str(made), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == made.stat().st_size
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    script = [sys.executable, str(path), "--tables", str(made)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout
