"""Recorded runs: every row of the plan by the real clock, in the form of predicted timelines."""

import json
from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringloom as rl
from command_line import CommandLine
from plain.test_traces import keeps_the_schema
from ringloom.codegen import emit
from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Plan
from ringloom.planner.passes.trim import drop_dead, drop_empty, drop_unused
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.recording import Recording, record, timeline
from ringloom.report.facts.recorded import recorded
from ringloom.runtimes import backends
from ringloom.runtimes.arrays import draw, draw_sinks
from ringloom.runtimes.backends import run
from ringloom.simulator.chrome_trace import trace
from ringloom.simulator.timeline import Span, spans
from strategies import any_workloads, schedules

SMALL = Workload(seq=48, heads=4, kv_heads=2, head_dim=8, dtype="float64")


def in_torch(pair: Plan | Plans, *arrays: Any, **rest: Any) -> Any:
    """A recorded run of the torch program, ranks as threads."""
    pytest.importorskip("torch")
    from rank_threads import as_threads

    return backends.record(pair, *arrays, launch=as_threads, timeout=30.0, **rest)


in_numpy = partial(backends.record, backend="numpy")
RECORDERS = {"torch": in_torch, "numpy": in_numpy}


def attends_of(one: Plan) -> Counter[tuple[int, int, str]]:
    """(rank, step, name) of every attend of a plan."""
    counts = Counter[tuple[int, int, str]]()
    for step, attend in one.attends():
        for rank, q, kv in zip(attend.rank.tolist(), attend.q, attend.kv, strict=True):
            blocks = (",".join(str(b) for b in side.tolist() if b >= 0) for side in (q, kv))
            counts[rank, step, "attend q {} x kv {}".format(*blocks)] += 1
    return counts


def each_attend_and_message_ran_once(one: Plan, events: list[Span]) -> None:
    ran = Counter((s.rank, s.step, s.name) for s in events if s.stream == "compute")
    assert ran == attends_of(one)
    sent = Counter((s.rank, s.step) for s in events if s.stream == "send")
    rows = [
        (
            src,
            n,
            size,
            move.accumulates and (one.partition.side(move.side).owners[own] == src).all(),
        )
        for n, move in one.moves()
        for src, own, size in zip(
            move.src.tolist(), move.blocks, message_bytes(one, n, move).tolist(), strict=True
        )
    ]
    wanted = Counter((src, n) for src, n, *_ in rows)
    # A program may leave sums of its own blocks where they are.
    assert Counter((src, n) for src, n, size, home in rows if size and not home) <= sent <= wanted


def a_rank_computes_one_thing_at_a_time(events: list[Span]) -> None:
    busy = defaultdict(list)
    for s in events:
        if s.stream in ("compute", "merge"):
            busy[s.rank].append((s.start, s.end))
    for times in busy.values():
        times.sort()
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(times))


@pytest.mark.parametrize("backend", RECORDERS)
@pytest.mark.parametrize(
    "schedule", ["ring", "bidirectional", "balanced", "burst", "usp:ulysses=2", "broadcast"]
)
def test_every_row_of_the_plan_is_recorded_once(schedule: str, backend: str) -> None:
    pair, arrays = plan(schedule, SMALL, 4, pass_="both"), draw(SMALL, 0)
    results, passes = RECORDERS[backend](pair, *arrays)
    for own, theirs in zip(results, run(pair, *arrays), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=0, atol=1e-12)
    assert [one.pass_ for one, _ in passes] == ["forward", "backward"]
    for one, events in passes:
        result = spans(timeline(one, events))
        each_attend_and_message_ran_once(one, result)
        a_rank_computes_one_thing_at_a_time(result)
        assert min(s.start for s in result) >= 0


@settings(max_examples=max(8, settings.default.max_examples // 8))
@given(st.data(), st.integers(1, 5), any_workloads(longest=24))
def test_what_ran_is_what_was_planned(data: st.DataObject, ranks: int, work: Workload) -> None:
    pair = plan(data.draw(schedules(ranks)), work, ranks, pass_="both")
    arrays = draw(work, 1)
    for recorded_run in (in_torch, in_numpy):
        for one, events in recorded_run(pair, *arrays, sinks=draw_sinks(work, 1))[1]:
            each_attend_and_message_ran_once(one, spans(timeline(one, events)))


def test_a_program_that_ran_before_in_the_same_process_is_recorded() -> None:
    pytest.importorskip("torch")
    from rank_threads import as_threads
    from ringloom.runtimes.torch.rank import ENTRY_POINTS

    pair, arrays = plan("ring", SMALL, 4, pass_="both"), draw(SMALL, 1)
    again = emit(pair, "torch").replace('"""', '"""The same code. ', 1)
    as_threads(again, 4, tuple(arrays), partial(ENTRY_POINTS["attention"], sinks=None), 30.0)
    for one, events in in_torch(pair, *arrays)[1]:
        each_attend_and_message_ran_once(one, spans(timeline(one, events)))


def test_a_backward_pass_alone_is_recorded_unless_it_needs_what_the_forward_pass_left() -> None:
    arrays, alone = draw(SMALL, 1), plan("ring", SMALL, 4, pass_="backward")
    ((one, events),) = in_torch(alone, *arrays)[1]
    each_attend_and_message_ran_once(one, spans(timeline(one, events)))
    with pytest.raises(RingloomError, match=r"starts with .* record both passes together"):
        in_torch(plan("ulysses", SMALL, 4, pass_="backward"), *arrays)


def test_a_message_without_an_element_takes_no_time() -> None:
    """Two of three ranks own no token, and messages for them are not left out."""
    work = Workload(seq=1, heads=3, kv_heads=1, head_dim=1, dtype="float64")
    passes = drop_dead, drop_unused, drop_empty
    whole = plan("ulysses", work, 3, pass_="both", passes=passes)
    for one, events in in_torch(whole, *draw(work, 1))[1]:
        each_attend_and_message_ran_once(one, spans(timeline(one, events)))
        sent = [
            times
            for (kind, rank, step, _), times in events.items()
            if kind == "send" and rank and step == 0
        ]
        assert sent
        assert all(start == end for start, end in sent)


def test_an_attend_waits_for_its_message() -> None:
    one = plan("ring", SMALL, 4)
    ((_, events),) = in_torch(one, *draw(SMALL, 0)[:3])[1]
    arrived = {at[1:3]: end for at, (_, end) in events.items() if at[0] == "receive"}
    began = {at[1:3]: start for at, (start, _) in events.items() if at[0] == "attend"}
    assert arrived
    assert all(arrived[rank, step] <= began.get((rank, step + 1), np.inf) for rank, step in arrived)


@pytest.fixture(scope="module")
def recording() -> Recording:
    pytest.importorskip("torch")
    q, k, v, dout = draw(SMALL, 0)
    pair = plan("zigzag", SMALL, 2, pass_="both")
    return record(pair, q, k, v, dout=dout, backend="torch")[1]


def test_a_recording_of_processes_is_a_trace_like_any_other(
    recording: Recording, tmp_path: Path
) -> None:
    assert recording.ranks == 2
    document = trace(recording)
    keeps_the_schema(document, 2)
    file = recording.save(tmp_path / "t.json.gz")
    read = recorded(file)
    assert (read.plan, read.ranks, read.hardware) == ("zigzag", 2, "torch")
    first, second = map(of, recording.passes)
    end = max(*(s.end for s in first), *(recording.passes[0].makespan + s.end for s in second))
    assert read.makespan == pytest.approx(end - first[0].start, abs=2e-6)


def of(one: Recording) -> list[Span]:
    """The spans of one pass, the first to begin first."""
    assert one.timeline is not None
    return sorted(spans(one.timeline), key=lambda s: s.start)


def test_a_rank_begins_the_backward_pass_when_it_is_done_with_the_forward_one(
    recording: Recording,
) -> None:
    first, second = recording.passes
    for rank in range(2):
        done = max(s.end for s in of(first) if s.rank == rank and s.stream == "compute")
        begins = min(s.start for s in of(second) if s.rank == rank and s.stream == "compute")
        assert done <= first.makespan + begins
    assert recording.makespan >= first.makespan + second.makespan
    assert recording.messages == first.messages + second.messages == 2 + 6


def test_a_recording_that_lacks_something_is_refused() -> None:
    one = plan("ring", SMALL, 2)
    _, passes = in_numpy(one, *draw(SMALL, 0)[:3])
    ((_, events),) = passes
    for kind, rank, step, number in (lost for lost in events if lost[0] != "arrive"):
        rest = {key: times for key, times in events.items() if key != (kind, rank, step, number)}
        said = f"{kind} {number} of rank {rank} in step {step} was not recorded"
        with pytest.raises(RingloomError, match=said):
            timeline(one, rest)


def test_a_program_that_does_something_else_is_refused() -> None:
    of_torch = pytest.importorskip("ringloom.runtimes.recording.of_torch")
    from rank_threads import as_threads

    one, two = (plan(name, SMALL, 2) for name in ("ring", "zigzag"))
    body = partial(of_torch.run_twice, of_torch.ENTRY_POINTS["attention"])
    parts = as_threads(emit(one, "torch"), 2, draw(SMALL, 0)[:3], body, 30.0)
    notes = [[of_torch.Note(*row) for row in shards[-1].tolist()] for shards in parts]
    assert of_torch.events_of(one, notes)
    with pytest.raises(RingloomError, match=r"differently from step \d of the plan"):
        of_torch.events_of(two, notes)


def test_no_message_arrives_before_it_is_sent() -> None:
    """Clocks of two ranks meet in one row, whatever they say."""
    one = plan("ring", SMALL, 2)
    _, ((_, events),) = in_numpy(one, *draw(SMALL, 0)[:3])
    late = {key: (start, end + 9.0 * (key[0] == "send")) for key, (start, end) in events.items()}
    sizes = {"ranks": 2, "makespan": 1.0, "messages": 1}
    run = Recording(name="ring", hardware="numpy", **sizes, timeline=timeline(one, late))
    keeps_the_schema(trace(run), 2)


def test_jax_is_refused_and_says_who_can() -> None:
    q, k, v, _ = draw(SMALL, 0)
    with pytest.raises(RingloomError, match="backends that can record: numpy, torch"):
        rl.record(plan("ring", SMALL, 2), q, k, v, backend="jax")
    with pytest.raises(RingloomError, match="unknown backend 'bus'"):
        rl.record(plan("ring", SMALL, 2), q, k, v, backend="bus")


# ---- ringloom run --trace

RUN = ["run", "zigzag", "--ranks", "2", "--seq", "32", "--heads", "2", "--head-dim", "4"]


def test_run_checks_and_writes_a_trace(tmp_path: Path, ringloom: CommandLine) -> None:
    file = tmp_path / "t.json"
    document = ringloom.json(*RUN, "--trace", str(file), "--check")
    assert (document["trace"], document["exact"]) == (str(file), True)
    keeps_the_schema(json.loads(file.read_text()), 2)
    assert (recorded(file).plan, recorded(file).ranks) == ("zigzag", 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "jax"], "a jax run cannot be recorded"),
        (["--trace", "t.txt"], "ends in .json or .json.gz"),
        (["--trace", "nowhere/t.json"], "cannot write"),
    ],
)
def test_run_refuses_what_it_cannot_record(
    options: list[str], said: str, tmp_path: Path, ringloom: CommandLine
) -> None:
    trace_file = [] if "--trace" in options else ["--trace", str(tmp_path / "t.json")]
    assert said in ringloom.refused(*RUN, *trace_file, *options)
