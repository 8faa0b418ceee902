"""Traces by their schema: what Perfetto draws and analysers count. And the critical path."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plain.test_simulator_reference import crowded, machines, plans
from rank_traces import save_ranks
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Plan
from ringloom.planner.masks import Blocks, Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.chrome_trace import TRANSFER, save_trace, trace
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.critical_path import Leg, critical_path
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.timeline import STREAMS, spans

A100 = hardware("a100-nvlink")
WORK = Workload(seq=2**15, heads=16)
FULL = Workload(seq=2**15, heads=16, mask=Full())
ENGINES = st.sampled_from(["recurrence", "events"])


def kept(one: Plan, machine: Hardware, **under: Any) -> Prediction:
    return simulate(one, machine, record=True, **under)


def events(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == phase]


@given(plans() | crowded(), machines, ENGINES, st.booleans(), st.sampled_from([1.0, 1e3]))
def test_a_trace_keeps_the_schema(
    one: Plan, machine: Hardware, engine: str, whole: bool, scale: float
) -> None:
    prediction = kept(one, machine, engine=engine)
    document = trace(prediction, scale=scale, whole=whole)
    keeps_the_schema(document, one.ranks, whole)


def keeps_the_schema(document: dict[str, Any], ranks: int, whole: bool = False) -> None:
    """Assert what viewers and analysers rely on."""
    slices = events(document, "X")
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    number = int if whole else (int, float)
    for e in slices:
        assert {"name", "cat", "pid", "tid", "ts", "dur", "args"} <= e.keys()
        assert isinstance(e["ts"], number)
        assert isinstance(e["dur"], number)
        assert e["ts"] >= -1e-9
        assert e["dur"] > 0
        assert 0 <= e["pid"] < ranks
        assert e["args"]["stream"] == e["tid"]
        moves = STREAMS[e["tid"] // 100] in ("send", "receive")
        assert e["name"].startswith(TRANSFER) == moves
    no_two_slices_of_a_thread_overlap(slices)
    every_arrow_has_two_ends_on_slices(document)
    every_thread_is_named(document)


def no_two_slices_of_a_thread_overlap(slices: list[dict[str, Any]]) -> None:
    threads = defaultdict(list)
    for e in slices:
        threads[e["pid"], e["tid"]].append((round(e["ts"] * 1e3), round(e["dur"] * 1e3)))
    for prediction in threads.values():
        assert prediction == sorted(prediction)
        assert all(start + took <= after for (start, took), (after, _) in pairwise(prediction))


def every_arrow_has_two_ends_on_slices(document: dict[str, Any]) -> None:
    starts = {e["id"]: e for e in events(document, "s")}
    ends = {e["id"]: e for e in events(document, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(events(document, "s"))
    begun = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in events(document, "X")}
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert " send " in begun[start["pid"], start["tid"], start["ts"]]
        assert " receive " in begun[end["pid"], end["tid"], end["ts"]]
        assert start["ts"] <= end["ts"] + 1e-6


def every_thread_is_named(document: dict[str, Any]) -> None:
    named = {(e["pid"], e.get("tid")) for e in events(document, "M")}
    assert {(e["pid"], e["tid"]) for e in events(document, "X")} <= named


def test_slices_are_the_spans_of_the_timeline() -> None:
    prediction = kept(plan("zigzag", WORK, 4, pass_="backward"), A100)
    assert prediction.timeline is not None
    slices = events(trace(prediction), "X")
    assert len(slices) == len(spans(prediction.timeline))
    assert len(events(trace(prediction), "s")) == prediction.messages
    busy = sum(e["dur"] for e in slices if e["tid"] // 100 < 2 and e["pid"] == 1) / 1e6
    assert prediction.memory is not None
    prologue = prediction.timeline.begin[0, 1]
    assert busy + prologue == pytest.approx(prediction.busy[1], rel=1e-4)


def test_messages_on_two_ports_at_once_go_to_two_threads() -> None:
    """The third rank of a node sends to its neighbour and to the next node."""
    machine = A100.changed({"node.ranks": 2, "inter.bandwidth": 1e9})
    document = trace(kept(plan("allgather", FULL, 4), machine))
    names = {e["args"]["name"] for e in events(document, "M") if e["name"] == "thread_name"}
    assert names == {"compute", "send", "send 2", "receive", "receive 2"}


def test_memory_is_a_counter_that_reaches_the_peak() -> None:
    prediction = kept(plan("allgather", WORK, 4), A100)
    counted = [e["args"]["bytes"] for e in events(trace(prediction), "C")]
    assert max(counted) == prediction.peak_bytes


def test_a_pair_runs_in_turn() -> None:
    both = kept(plan("ring", WORK, 4, pass_="both"), A100)  # type: ignore[arg-type]
    document = trace(both)
    first = events(trace(both.passes[0]), "X")
    ends = [e["ts"] + e["dur"] for e in events(document, "X")]
    assert max(ends) == pytest.approx(both.makespan * 1e6, abs=0.01)
    assert len(events(document, "X")) == len(first) + len(events(trace(both.passes[1]), "X"))
    arrows = [e["id"] for e in events(document, "s")]
    assert len(arrows) == len(set(arrows)) == both.messages


def test_files_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    one = plan("zigzag", WORK, 4)
    for name in ("t.json", "t.json.gz"):
        first, second = (
            save_trace(trace(kept(one, A100, engine=e)), tmp_path / f"{e}-{name}")
            for e in ("events", "recurrence")
        )
        assert first.read_bytes() == second.read_bytes()
    packed = gzip.decompress((tmp_path / "events-t.json.gz").read_bytes())
    assert packed == (tmp_path / "events-t.json").read_bytes()


def test_one_file_per_rank_for_analysers_that_want_it_so(tmp_path: Path) -> None:
    files = save_ranks(kept(plan("ring", WORK, 4), A100), tmp_path, scale=1000)
    assert len(files) == 4
    for rank, file in enumerate(files):
        text = gzip.decompress(file.read_bytes()).decode()
        assert f'"distributedInfo": {{"rank": {rank}}}' in text
        document = json.loads(text)
        assert {e["pid"] for e in document["traceEvents"]} == {rank}
        assert all(isinstance(e["ts"], int) for e in events(document, "X"))
        assert not events(document, "s"), "an arrow would lead out of the file"


def test_what_cannot_be_traced_is_told(tmp_path: Path) -> None:
    prediction = kept(plan("ring", WORK, 4), A100)
    with pytest.raises(RingloomError, match=r"ends in \.json or \.json\.gz, not t\.txt"):
        save_trace(trace(prediction), tmp_path / "t.txt")
    with pytest.raises(RingloomError, match="cannot write"):
        save_trace(trace(prediction), tmp_path / "nowhere" / "t.json")
    with pytest.raises(RingloomError, match="scale must be more than 0"):
        trace(prediction, scale=0)
    with pytest.raises(RingloomError, match="rows were not kept"):
        trace(simulate(plan("ring", WORK, 4), A100, record=False))


def path(prediction: Prediction) -> tuple[Leg, ...]:
    assert prediction.timeline is not None
    return critical_path(prediction.timeline)


@given(
    plans() | crowded(),
    machines,
    ENGINES,
    st.booleans(),
    st.sampled_from([None, "nodes:nics=1", "ring"]),
)
def test_the_critical_path_leaves_no_gap_from_beginning_to_end(
    one: Plan, machine: Hardware, engine: str, overlap: bool, place: str | None
) -> None:
    engine = "events" if place else engine
    prediction = kept(one, machine, engine=engine, overlap=overlap, topology=place)
    legs = path(prediction)
    if prediction.makespan == 0:
        return
    near = 1e-8 * prediction.makespan
    assert legs[0].start == pytest.approx(0.0, abs=near)
    assert legs[-1].end == pytest.approx(prediction.makespan)
    assert all(a.end == pytest.approx(b.start, abs=near) for a, b in pairwise(legs))
    assert sum(leg.end - leg.start for leg in legs) == pytest.approx(prediction.makespan)
    if legs[0].kind == "prologue":  # and nothing that found no cause
        assert legs[0].end == pytest.approx(Costs(one, machine).prologue[legs[0].rank])


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", ["pass-q", "usp:ulysses=3:ring=2"])
def test_a_message_waits_for_those_that_its_sender_sent_before(name: str, overlap: bool) -> None:
    work = Workload(seq=2**14, heads=12, kv_heads=2)
    legs = path(kept(plan(name, work, 6), A100, overlap=overlap))
    assert "prologue" not in {leg.kind for leg in legs}, "a forward pass has none"


def test_the_critical_path_of_a_slow_link_waits_for_it() -> None:
    prediction = kept(plan("ring", FULL, 8), A100, links={(6, 7): 0.01})
    words = [leg.words for leg in path(prediction)]
    assert any(w.startswith("rank 7 waits for KV") and w.endswith("over link 6-7") for w in words)
    waits = sum(leg.end - leg.start for leg in path(prediction) if leg.link == "6-7")
    assert waits > 0.9 * prediction.makespan


def test_the_critical_path_of_a_straggler_is_the_straggler() -> None:
    prediction = kept(plan("striped", WORK, 8), A100, speeds={3: 0.5})
    own = sum(leg.end - leg.start for leg in path(prediction) if leg.rank == 3 and not leg.link)
    assert own > 0.8 * prediction.makespan


def test_the_critical_path_ends_with_a_straggler_that_has_nothing_but_sums() -> None:
    one = plan("burst", Workload(seq=468, kv_seq=1, heads=16, mask="prefix:1"), 3, pass_="backward")
    prediction = kept(one, A100.changed({"attention.launch": 0}), speeds={1: 0.001})
    (leg,) = path(prediction)
    assert (leg.kind, leg.rank, leg.end) == ("prologue", 1, prediction.makespan)


def test_nothing_to_do_has_no_path() -> None:
    nothing = replace(WORK, mask=Blocks(((False,),), WORK.seq))
    assert path(kept(plan("ring", nothing, 4), A100)) == ()
