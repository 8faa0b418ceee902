"""Arguments of a wrong kind: each is told what belongs there, before anything runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringloom as rl

R: Any = rl
WORK = rl.Workload(seq=24, heads=2, head_dim=4, dtype="float64")
PLAN = rl.plan("ring", WORK, 3)
RUN = rl.simulate(PLAN, "h100")
Q = np.zeros((1, 2, 24, 4))
GRID = {"ranks": 2, "seq": 64, "hardware": "h100", "schedule": "ring"}

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: R.trace(PLAN), "trace takes a prediction or a recording, not <Plan|Plan"),
    (lambda: R.trace(RUN, scale=float("inf")), "scale must be more than 0, not inf"),
    (lambda: R.trace(RUN, scale="x"), "scale must be more than 0, not 'x'"),
    (lambda: R.trace(RUN, ranks=[9]), "a trace of 3 ranks has no rank 9"),
    (lambda: R.save_trace({}, None), "a trace file ends in .json or .json.gz, not None"),
    (lambda: R.topology(3, "h100", 4), "a topology is one of nodes, .* or a graph, not 3"),
    (lambda: R.topology("switch", None, 4), "hardware is a preset, a file or an rl.Hardware, not"),
    (lambda: R.topology("switch", "h100", "4"), "ranks '4' is not a whole number"),
    (lambda: R.simulate(PLAN, 3), "hardware is a preset, a file or an rl.Hardware, not 3"),
    (lambda: R.simulate(PLAN, "h100", topology=3), "a topology is one of nodes, "),
    (lambda: R.Scenario(share="x"), "share must be a number, not 'x'"),
    (lambda: R.Scenario(chunk=float("nan")), "chunk must be a whole number, not nan"),
    (lambda: R.Scenario(speeds={1: "x"}), "speeds must be numbers by rank, .*, not {1: 'x'}"),
    (lambda: R.Scenario(speeds="123"), "speeds must be numbers by rank, .*, not '123'"),
    (lambda: R.Scenario(links={(0, 1): "x"}), "links must be factors by two places, .*'x'}"),
    (lambda: R.Scenario(placement=3), r"placement must be a list like \[0, 2, 1, 3\], not 3"),
    (lambda: R.Scenario(placement=["a"]), r"placement must be a list like .*, not \['a'\]"),
    (lambda: R.compare(WORK, 3, "h100", memory="x"), "memory must be a number of bytes, not 'x'"),
    (lambda: R.from_cu_seqlens([0, 9], window_size=(3,)), r"window_size must be .*, not \(3,\)"),
    (lambda: R.from_cu_seqlens([0, 9], window_size="ab"), "window_size 'a' is not a whole number"),
    (lambda: R.Scenario(links={(1, 2, 3): 0.1}), "links must be factors by two places, .*0.1}"),
    (lambda: R.topology("x" * 5000, "h100", 4), "neither a file nor one of nodes, "),
    (lambda: R.check(PLAN, seed=-1), "seed -1 is less than 0"),
    (lambda: R.plan("ring", WORK, 4, passes=3), "passes must be a list of functions, .*, not 3"),
    (
        lambda: R.plan("ring", WORK, 4, passes=[3]),
        r"passes must be a list of functions, .*, not \[3\]",
    ),
    (lambda: R.plan(None, WORK, 4), "unknown schedule 'None': choose one of ring, "),
    (lambda: R.plan("ring", WORK, 4, layout=[]), "choose one of contiguous, striped, zigzag"),
    (lambda: R.compare("ring", 4, "h100"), "compare.*: work must be an rl.Workload, not 'ring'"),
    (lambda: R.compare(WORK, None, "h100"), "ranks must be a positive integer, not None"),
    (lambda: R.compare(WORK, 4, "h100", 3), "schedules must be a list of names, such as"),
    (lambda: R.by_tokens(WORK, -1, "zigzag"), "ranks must be a positive integer, not -1"),
    (
        lambda: R.balanced_layout(WORK, 3, 4),
        "balanced_layout takes a list of at least one mask, not 3",
    ),
    (lambda: R.document_positions(WORK), "document_positions takes one plan, .*, not Workload"),
    (lambda: R.document_positions(PLAN, "k"), "side must be q or kv, not 'k'"),
    (lambda: R.schedule("ring"), "schedule decorates a function, not 'ring'"),
    (lambda: R.run(PLAN, Q, Q, Q, backend=3), "unknown backend 3: choose one of numpy, "),
    (lambda: R.Documents(24), r"Documents takes a list of lengths, such as \(512, 1024\), not 24"),
    (lambda: R.Tree(24, (None,)), "Tree takes a list of lengths, such as .*, not 24"),
    (lambda: R.Tree((24,), 3), r"Tree takes a list of parents, such as \(None, 0\), not 3"),
    (lambda: R.Varlen((24,), (3, 4)), "Varlen has 1 lengths but 2 q_lengths"),
    (lambda: R.load(None), "None: expected str, bytes or os.PathLike object, not NoneType"),
    (lambda: R.save(PLAN, None), "cannot write None: it is not a file name"),
    (lambda: R.Workload(24, mask=Q), r"such as Causal\(\), not array.{55}$"),
    (lambda: R.Workload(Q), r"seq must be a whole number, not array.{55}$"),
    (lambda: R.Prefix(Q), r"Prefix n array.{55} is not a whole number"),
    (lambda: R.Step(3), "attends must be of type Attend, not 3"),
    (lambda: R.Step((), PLAN), "moves must be of type Move, not "),
    (lambda: R.Move(None, [[0]], [0], [1]), "tensors must be of type str, not None"),
    (lambda: R.Block((8,), range(2), 0), "positions must be of type range, not 8"),
    (lambda: R.Block((range(8),), 2, 0), "heads must be of type range, not 2"),
    (lambda: R.Side([range(8)]), r"blocks must be of type Block, not range\(0, 8\)"),
    (lambda: R.Partition([], []), r"sides must be of type Side, not \[\]"),
    (lambda: R.Plan("x", WORK, 3, None, "forward", (), (), ()), "partition must be of type Part"),
    (lambda: R.Plan("x", WORK, 3, PLAN.partition, "forward", 3, (), ()), "start must be of .* 3"),
    (lambda: R.Plan("x", WORK, 3, PLAN.partition, "forward", (), (), 3), "steps must be of .* 3"),
    (lambda: PLAN.side("K"), "unknown tensor 'K': choose one of Q, "),
    (lambda: R.adjoint(PLAN, keep=3), "keep must be of type str, not 3"),
    (lambda: R.by_tokens(WORK, 3, "striped", "4"), "grain '4' is not a whole number"),
    (lambda: R.Scenario(chunk=None), "a chunk has 1 byte or more, not None"),
    (lambda: R.save_trace(RUN, "t.json"), "a trace must be of type dict, not <Prediction"),
    (lambda: R.hardware("h100").changed(3), "changes must be numbers by constant, not 3"),
    (lambda: R.sweep(GRID, "folder", backend="x"), "unknown backend 'x': choose one of loky, dask"),
    (lambda: R.sweep(GRID, "folder", jobs=-3), "jobs -3 is less than 1"),
    (lambda: R.sweep(3, "folder"), "grid 3: expected str, bytes or os.PathLike object, not int"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_what_belongs_there_is_told(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rl.RingloomError, match=said):
        call()


def test_rows_are_kept_where_record_is_true() -> None:
    timeline = R.simulate(PLAN, "h100", record=3).timeline
    assert np.array_equal(timeline.begin, RUN.timeline.begin)  # type: ignore[union-attr]


def test_numbers_of_numpy_are_numbers() -> None:
    assert rl.trace(RUN, scale=np.float32(2)) == rl.trace(RUN, scale=2.0)
    bounded = rl.compare(WORK, 3, "h100", schedules=["ring"], memory=np.int64(2**40))
    assert bounded.rows[0].makespan_s is not None
    window = np.array([3, 0])
    assert R.from_cu_seqlens([0, 9], window_size=window) == rl.from_cu_seqlens(
        [0, 9], window_size=(3, 0)
    )


def test_hardware_of_a_topology_may_be_a_name() -> None:
    named, given = (rl.topology("nodes", chips, 16) for chips in ("h100", rl.hardware("h100")))
    assert [*named.graph.edges(data=True)] == [*given.graph.edges(data=True)]
