"""Torch programs that run any plan by its tables, in the program or as an argument."""

from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import CommandLine
from ringloom.codegen.frame.layout import layout_of
from ringloom.codegen.programs import Program
from ringloom.codegen.torch import by_tables, write
from ringloom.codegen.torch.by_tables import tables_of
from ringloom.codegen.torch.calls import shared_heads
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.masks import Causal, Full, Mask, Window
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.planning import backward_of, plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from strategies import any_workloads, masks, schedules

torch = pytest.importorskip("torch")

from rank_threads import assert_exact, in_threads, load, self_check  # noqa: E402  only where torch is

RANKS = 4
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 4, "dtype": "float64"}
CASES = settings(max_examples=max(12, settings.default.max_examples // 2))


def program_of(plans: Plans | Plan, **options: Any) -> Program:
    """A table program, whatever recovery would say."""
    given = Plans.of(plans)
    made = Program(
        "torch", given.first, given.backward, layout_of(given.first), None, None, "a test"
    )
    return replace(made, **options)


def both(schedule: str, work: Workload, ranks: int = RANKS, **options: Any) -> Plans:
    return plan(schedule, work, ranks, pass_="both", **options)


# ---- tables in the program


@CASES
@given(st.data(), st.integers(1, 6), any_workloads(), st.sampled_from(["messages", "blocks"]))
def test_every_plan_runs_exactly_by_its_tables(
    data: st.DataObject, ranks: int, work: Workload, trim: str
) -> None:
    """With sinks, outputs that the forward pass leaves on other ranks have these, too."""
    plans = both(data.draw(schedules(ranks)), work, ranks, trim=trim)
    assert_exact(load(write(program_of(plans))), plans)


def test_calls_take_as_many_query_heads_for_each_kv_head() -> None:
    """Kernels know groups of one size only, so slices that cut a group are cut there."""
    slices = product(combinations(range(13), 2), combinations(range(5), 2))
    for (a, b), (c, d) in slices:
        seen = set[tuple[int, int]]()
        for heads, kv_heads in shared_heads(range(a, b), range(c, d), 3):
            q = range(a, b)[slice(*heads)] if heads else range(a, b)
            kv = range(c, d)[slice(*kv_heads)] if kv_heads else range(c, d)
            assert len(q) % len(kv) == 0
            seen |= {(head, kv[n // (len(q) // len(kv))]) for n, head in enumerate(q)}
        assert seen == {(head, head // 3) for head in range(a, b) if c <= head // 3 < d}


def test_long_windows_are_cut_into_strips() -> None:
    work = Workload(seq=2600, mask=Window(40, 7), **HEADS)
    ((((_, _, calls),),),) = [
        [s[2] for s in r] for r in tables_of(program_of(plan("ring", work, 1)))["FORWARD"]
    ]
    count = np.zeros((2600, 2600), np.int64)
    for band, rows, cols, *_ in calls:
        ahead = np.arange(*cols) - cols[0] - (np.arange(*rows) - rows[0])[:, None]
        count[slice(*rows), slice(*cols)] += (band[0] <= ahead) & (ahead <= band[1])
    np.testing.assert_array_equal(count, work.allowed(range(2600), range(2600)))
    assert len(calls) == 3


def test_blocks_whose_positions_interlace_run_exactly() -> None:
    """Uneven strides, in blocks of several ranges, whose rows they share out."""
    blocks = [
        Block((range(0, 40, 4), range(41, 50, 2)), range(4), 0),
        Block((range(1, 40, 4), range(2, 40, 4), range(40, 50, 2)), range(4), 1),
        Block((range(3, 40, 4),), range(4), 1),
    ]
    side = Side(tuple(blocks))
    kv = Side(tuple(replace(block, heads=range(2)) for block in blocks))
    work = Workload(seq=50, mask=Causal() & Window(30), **HEADS)
    move = Move(("KV",), [[1, 2], [0, -1]], [1, 0], [0, 1])
    attend = Attend([0, 1], [[0, -1], [1, 2]], [[0, 1, 2], [0, 1, 2]])
    forward = Plan(
        "by hand",
        work,
        2,
        Partition(side, kv),
        "forward",
        (),
        (),
        (Step((), (move,)), Step((attend,))),
    )
    plans = Plans(verify(forward), backward_of(forward))
    assert_exact(load(write(program_of(plans))), plans)


def test_long_tables_are_compressed_and_read_again() -> None:
    work = Workload(seq=96, mask=Causal(), **HEADS)
    plans = both("zigzag", work, 12)
    text = write(program_of(plans))
    assert "unpack(" in text
    assert_exact(load(text), plans)


def test_initial_copies_that_no_program_has_are_refused() -> None:
    work = Workload(seq=24, mask=Full(), **HEADS)
    forward, backward = both("ring", work, 2)
    early = replace(forward, start=(InitialCopy(("KV",), [[1]], [0]),))
    with pytest.raises(PlanError, match="KV is on other ranks before the forward pass"):
        write(program_of((early, backward)))
    early = replace(backward, start=(InitialCopy(("DOUT",), [[1]], [0]),))
    with pytest.raises(PlanError, match="DOUT is on other ranks, but no forward pass"):
        write(program_of((forward, early)))


def test_compiled_whole_and_saved_by_a_checkpoint_policy() -> None:
    work = Workload(seq=16, mask=Causal(), **HEADS)
    plans = both("ring", work, 1)
    program = load(write(program_of(plans)))
    calls = list[int]()
    plain = program.run
    program.run = lambda *given: (calls.append(1), plain(*given))[1]  # type: ignore[attr-defined]
    arrays = [torch.from_numpy(x) for x in draw(work, 0)]

    def body(group: Any) -> list[Any]:
        from torch.utils.checkpoint import (
            CheckpointPolicy,
            checkpoint,
            create_selective_checkpoint_contexts,
        )

        def policy(_: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
            kept = called == program.forward._opoverload
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        def attend(q: Any, k: Any, v: Any) -> Any:
            return program.attention(q * 1.0, k, v, group=group).sin()

        def saved(*given: Any) -> Any:
            contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
            return checkpoint(attend, *given, use_reentrant=False, context_fn=contexts)

        result = []
        whole = torch.compile(attend, fullgraph=True, backend="aot_eager")
        for function, count in ((attend, 2), (saved, 2), (whole, 2)):
            calls.clear()
            q, k, v = (x.clone().requires_grad_() for x in arrays[:3])
            function(q, k, v).backward(arrays[3])
            assert len(calls) == count
            result.append([q.grad, k.grad, v.grad])
        return result

    (result,) = in_threads(1, body)
    for other in result[1:]:
        for a, b in zip(result[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


# ---- tables as an argument


@pytest.fixture(scope="module")
def given_tables() -> ModuleType:
    """One program; it is emitted from a plan that no test uses."""
    return load(
        write(program_of(both("ring", Workload(seq=8, mask=Full(), **HEADS)), dynamic=True))
    )


def arrays_of(plans: Plans | Plan) -> dict[str, Any]:
    return by_tables.tables(program_of(plans, dynamic=True))


@st.composite
def works(draw_: st.DrawFn) -> Workload:
    seq = draw_(st.integers(1, 30))
    kv_seq = draw_(st.just(seq) | st.integers(1, 30))
    return Workload(seq=seq, kv_seq=kv_seq, mask=draw_(masks(seq, kv_seq)), **HEADS)


@CASES
@given(st.data(), works())
def test_any_plan_of_its_ranks_is_exact(
    given_tables: ModuleType, data: st.DataObject, work: Workload
) -> None:
    pair = both(data.draw(schedules(RANKS)), work)
    assert_exact(given_tables, pair, given_tables.Tables(arrays_of(pair)))


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_scales_that_kernels_cannot_take_are_exact(scale: float) -> None:
    pair = both("zigzag", Workload(seq=23, mask=Causal(), scale=scale, **HEADS), 3)
    assert_exact(load(write(program_of(pair))), pair)  # has kernels without windows
    program = load(write(program_of(pair, dynamic=True)))
    assert_exact(program, pair, program.Tables(arrays_of(pair)))


def test_the_example_in_the_file_is_exact(given_tables: ModuleType) -> None:
    work = Workload(seq=43, mask=Causal(), **HEADS)
    made = given_tables.example(43)
    sizes = [len(shard) for shard in made.shards["q"]]
    ends = np.cumsum([0, *sizes]).tolist()
    side = tuple(Block((range(a, b),), range(4), r) for r, (a, b) in enumerate(pairwise(ends)))
    keys = tuple(replace(block, heads=range(2)) for block in side)
    pair = both("ring", work)
    layout = replace(pair.forward, partition=Partition(Side(side), Side(keys)), steps=())
    assert_exact(given_tables, Plans(layout, pair.backward), made)


def test_other_tokens_than_those_of_the_tables_are_refused(given_tables: ModuleType) -> None:
    made = given_tables.Tables(arrays_of(both("zigzag", Workload(seq=21, mask=Causal(), **HEADS))))
    whole = torch.arange(21)
    parts = [given_tables.shard(whole, rank, made, axis=0) for rank in range(RANKS)]
    assert torch.equal(given_tables.unshard(parts, made, axis=0), whole)
    for tokens in (20, 22):
        with pytest.raises(ValueError, match=f"the layout has 21 tokens, not {tokens}"):
            given_tables.shard(torch.arange(tokens), 0, made, axis=0)
        with pytest.raises(ValueError, match=f"the layout has 21 tokens, not {tokens}"):
            given_tables.unshard([torch.arange(tokens)], made, axis=0)


def test_tables_of_a_forward_plan_serve_inference_only(given_tables: ModuleType) -> None:
    work = Workload(seq=21, mask=Causal(), **HEADS)
    made = given_tables.Tables(arrays_of(plan("burst", work, RANKS)))
    arrays = draw(work, 1)

    def body(group: Any) -> None:
        at = given_tables.positions(group.rank(), made).numpy()
        q, k, v = (torch.from_numpy(x[:, :, at]).requires_grad_() for x in arrays[:3])
        given_tables.attention(q, k, v, made, group=group).sum().backward()

    with pytest.raises(NotImplementedError, match="these tables have no backward plan"):
        in_threads(RANKS, body)


def good(mask: Mask = Causal(), ranks: int = RANKS, **changes: Any) -> dict[str, Any]:  # noqa: B008
    return arrays_of(both("zigzag", Workload(seq=24, mask=mask, **HEADS | changes), ranks))


def with_entry(name: str, at: Any, value: int) -> dict[str, Any]:
    arrays = {key: array.copy() for key, array in good().items()}
    arrays[name][at] = value
    return arrays


BAD = {
    r"built for \(3, 3, ": lambda: good(ranks=3),
    r"for \(3, 4, 8, 2, 4, 0.5\), but this program needs \(3, 4, 4, ": lambda: good(heads=8),
    "these tables were built for": lambda: with_entry("sizes", 0, 9),
    "these tables lack scale, mask": lambda: {
        name: array for name, array in good().items() if name not in ("mask", "scale")
    },
    "do not assign each q token to": lambda: with_entry("q_order", 3, 4),
    "do not assign each kv token to": lambda: with_entry("kv_order", 3, 24),
}


@pytest.mark.parametrize("said", BAD)
def test_tables_that_do_not_fit_are_refused(given_tables: ModuleType, said: str) -> None:
    given_tables.Tables(good())
    with pytest.raises(ValueError, match=said):
        given_tables.Tables(BAD[said]())


def test_ranks_with_different_tables_are_refused(given_tables: ModuleType) -> None:
    one, another = (given_tables.Tables(good(mask)) for mask in (Causal(), Full()))

    def body(group: Any) -> None:
        q, kv = torch.zeros(1, 4, 6, 4), torch.zeros(1, 2, 6, 4)
        given_tables.attention(q, kv, kv, another if group.rank() == 2 else one, group=group)

    with pytest.raises(ValueError, match=r"ranks \[2\]: .*, tables "):
        in_threads(RANKS, body)


@pytest.mark.parametrize("dtype", ["int64", "complex128"])
def test_other_types_than_floats_are_refused(given_tables: ModuleType, dtype: str) -> None:
    """Results would be cut to integers, or lose what is imaginary."""
    made, kind = given_tables.Tables(good()), getattr(torch, dtype)

    def body(group: Any) -> None:
        q, kv = torch.ones(1, 4, 6, 4, dtype=kind), torch.ones(1, 2, 6, 4, dtype=kind)
        given_tables.attention(q, kv, kv, made, group=group)

    with pytest.raises(ValueError, match=f"q is torch.{dtype} .* with a float dtype"):
        in_threads(RANKS, body)


# ---- files


OPTIONS = ["--ranks", "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "4", "--seq"]


def test_a_file_checks_itself_by_tables_of_the_command_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ringloom: CommandLine,
) -> None:
    made, path = tmp_path / "64", tmp_path / "program.py"
    ringloom("emit", "torch", "ring", *OPTIONS, "40", "--dynamic", "-o", str(path))
    command = ["tables", "torch", "balanced", *OPTIONS, "90", "--mask", "causal & documents:50,40"]
    ringloom(*command, "-o", str(made))
    monkeypatch.chdir(tmp_path)
    self_check(path.read_text(), "--tables=64")
    assert "seq 90, largest errors" in capsys.readouterr().out
    arrays = dict(np.load(made))
    arrays["mask"] = arrays["mask"][:1]
    with made.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    with pytest.raises(AssertionError, match="not exact"):
        self_check(path.read_text(), "--tables", str(made))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["64"], "unrecognized arguments: 64"),
        (["--sequence", "64"], "unrecognized arguments: --sequence 64"),
        (["--tables", "64", "--seq", "64"], "--seq: not allowed with argument --tables"),
        (["--tables"], "--tables: expected one argument"),
        (["--seq", "x"], "--seq: invalid int value: 'x'"),
    ],
)
def test_words_that_a_file_does_not_know_are_refused(
    given_tables: ModuleType, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        self_check(Path(str(given_tables.__file__)).read_text(), *words)
    assert said in capsys.readouterr().err


def test_a_file_of_its_own_starts_all_ranks(
    given_tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[list[str]]()
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("sys.argv", ["program.py", "--seq", "64"])
    monkeypatch.setattr(given_tables, "torchrun", started.append)
    with pytest.raises(SystemExit):
        given_tables.main()
    assert started == [["--standalone", f"--nproc-per-node={RANKS}", "program.py", "--seq", "64"]]
