"""The event engine: equal to the recurrence where both apply, and right where only it does."""

import gzip
import json
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import CommandLine
from plain.test_simulator_reference import crowded, machines, plans
from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.ir import Attend, Move, Plan, Step
from ringloom.planner.masks import Blocks, Full
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import Prediction, simulate
from ringloom.simulator.scenario import Scenario
from ringloom.simulator.timeline import Span, spans

A100 = hardware("a100-nvlink")
WORK = Workload(seq=2**16, heads=16)
FULL = Workload(seq=2**16, heads=16, mask=Full())
speeds = st.dictionaries(st.integers(0, 1), st.floats(0.1, 4.0))
ROUNDING = 1 + 1e-9


def close(result: object, expected: object) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-15)  # type: ignore[arg-type]


def rows(prediction: Prediction) -> list[Span]:
    assert prediction.timeline is not None
    return spans(prediction.timeline)


def equal(one: Prediction, other: Prediction) -> None:
    """All that both engines say, down to every span."""
    assert (one.engine, other.engine) == ("recurrence", "events")
    for name in ("makespan", "busy", "exposed", "bytes_sent", "busiest_link", "plan_lower_bound"):
        close(getattr(one, name), getattr(other, name))
    assert one.timeline is not None
    assert other.timeline is not None
    close(one.timeline.finish, other.timeline.finish)
    close(one.timeline.steps, other.timeline.steps)
    assert one.timeline.rows is not None
    assert other.timeline.rows is not None
    for ours, theirs in zip(one.timeline.rows, other.timeline.rows, strict=True):
        assert (type(ours), ours.step, ours.node) == (type(theirs), theirs.step, theirs.node)
        close(ours.start, theirs.start)
        close(ours.end, theirs.end)


TOPOLOGIES = [None, "switch", "ring", "nodes:nics=1", "nodes:nics=2"]


@settings(max_examples=2 * settings.default.max_examples)
@given(plans() | crowded(), machines, st.booleans(), st.sampled_from(TOPOLOGIES), st.data())
def test_both_engines_agree_on_every_topology_where_no_link_is_shared(
    one: Plan, machine: Hardware, overlap: bool, place: str | None, data: st.DataObject
) -> None:
    ends = data.draw(st.permutations(range(one.ranks)))[:2]
    slow = data.draw(st.floats(0.01, 2.0))
    links = {(ends[0], ends[1]): slow} if one.ranks > 1 and place == "switch" else {}
    paces = {r: s for r, s in data.draw(speeds).items() if r < one.ranks and place is None}
    scenario = Scenario(overlap, topology=place, links=links, speeds=paces)
    events = simulate(one, machine, scenario, engine="events", record=True)
    if events.contended:
        assert place
        with pytest.raises(RingloomError, match="messages share link"):
            simulate(one, machine, scenario, engine="recurrence", record=True)
    else:
        equal(simulate(one, machine, scenario, engine="recurrence", record=True), events)


@given(plans() | crowded(), machines, st.sampled_from(["nodes:nics=1", "ring", "torus"]))
def test_a_run_is_the_same_bit_for_bit(one: Plan, machine: Hardware, place: str) -> None:
    written = f"torus:{one.ranks}" if place == "torus" else place
    first, second = (
        simulate(one, machine, engine="events", topology=written, record=True, chunk=64)
        for _ in range(2)
    )
    assert rows(first) == rows(second)
    assert (first.busy == second.busy).all()


@given(plans() | crowded(), machines, st.integers(1, 4000))
def test_sharing_the_nic_of_a_node_is_never_faster_than_one_each(
    one: Plan, machine: Hardware, chunk: int
) -> None:
    shared = simulate(one, machine, topology="nodes:nics=1", chunk=chunk)
    assert shared.makespan * ROUNDING >= simulate(one, machine).makespan
    assert shared.makespan * ROUNDING >= shared.plan_lower_bound


def test_ranks_that_share_a_nic_share_its_bandwidth() -> None:
    """Eight ranks gather from another node over one NIC: it carries eight times as much."""
    one = plan("allgather", FULL, 16)
    alone, shared = (simulate(one, A100, topology=f"nodes:nics={n}") for n in (8, 1))
    assert (alone.contended, shared.contended) == (False, True)
    assert shared.busiest_link == pytest.approx(8 * alone.busiest_link)
    assert shared.makespan > 0.99 * shared.busiest_link


def crossing(src: list[int], dst: list[int], topology: str, chunk: int = 1024) -> list[Span]:
    """Blocks of 1 MiB each, sent at once on a machine of two nodes of two ranks."""
    nothing = Blocks(((False,),), 4096)  # to attend: messages alone are an exact plan
    base = plan("allgather", Workload(seq=4096, heads=4, head_dim=256, mask=nothing), 4)
    one = replace(base, steps=(Step((), (Move(("KV",), src, src, dst),)),))
    machine = A100.changed({"node.ranks": 2, "inter.alpha": 0, "intra.alpha": 0})
    return rows(
        simulate(one, machine, topology=topology, record=True, chunk=chunk, engine="events")
    )


def test_two_messages_that_meet_take_turns_chunk_by_chunk() -> None:
    """Ranks 0 and 1 send to 2 and 3 over one NIC: neither is through before both nearly are."""
    alone = crossing([0], [2], "nodes:nics=1")[0].end
    first, second = (s.end for s in crossing([0, 1], [2, 3], "nodes:nics=1") if s.stream == "send")
    close(max(first, second), 2 * alone)
    assert min(first, second) > 1.9 * alone
    assert {s.end for s in crossing([0, 1], [2, 3], "nodes:nics=2")} == {alone}


def test_a_message_in_one_chunk_holds_up_the_other_altogether() -> None:
    alone = crossing([0], [2], "nodes:nics=1")[0].end
    ends = [s.end for s in crossing([0, 1], [2, 3], "nodes:nics=1", chunk=2**40)]
    close(sorted(set(ends)), [alone, 2 * alone])


def test_a_message_over_several_links_is_as_fast_as_its_narrowest() -> None:
    """On a ring of four, 0 -> 2 goes over rank 1: cut through, not stored and forwarded."""
    direct, relayed = (crossing([0], [dst], "ring")[0].end for dst in (1, 2))
    close(direct, relayed)


def test_messages_over_a_common_link_of_a_ring_halve_each_other() -> None:
    """0 -> 2 and 1 -> 2 share link 1-2."""
    alone = crossing([0], [2], "ring")[0].end
    ends = [s.end for s in crossing([0, 1], [2, 2], "ring") if s.stream == "send"]
    close(max(ends), 2 * alone)


def test_a_straggler_at_half_speed_doubles_what_it_computes_and_the_time_of_a_balanced_plan() -> (
    None
):
    one = plan("striped", WORK, 8)
    even, slow = (simulate(one, A100, speeds=s, share=0.0) for s in (None, {3: 0.5}))
    close(slow.busy[3], 2 * even.busy[3])
    close(np.delete(slow.busy, 3), np.delete(even.busy, 3))
    assert slow.makespan * ROUNDING >= 2 * even.busy[3]
    assert slow.makespan == pytest.approx(2 * even.makespan, rel=0.05)


def test_a_straggler_that_has_little_to_do_costs_a_causal_ring_nothing() -> None:
    """Rank 0 of a contiguous causal ring attends one block and waits for nobody."""
    one = plan("ring", WORK, 8)
    assert simulate(one, A100, speeds={0: 0.5}).makespan == simulate(one, A100).makespan
    assert simulate(one, A100, speeds={7: 0.5}).makespan > 1.9 * simulate(one, A100).makespan


def test_a_link_at_a_tenth_takes_ten_times_as_long_and_the_ring_waits_for_it() -> None:
    """Every KV block crosses link 3-4, the last one of seven after six others."""
    one = plan("ring", FULL, 8)
    even, slow = (simulate(one, A100, links=link) for link in ({}, {(3, 4): 0.1}))
    crossing = 7 * one.block_bytes("KV")[0] / (0.1 * A100["intra.bandwidth"])
    assert slow.makespan > crossing
    assert slow.busiest_link == pytest.approx(10 * even.busiest_link)
    thin = simulate(one, A100, links={(3, 4): 0.01})
    assert thin.makespan == pytest.approx(10 * crossing, rel=0.2)


def test_a_link_that_nobody_uses_may_be_slow() -> None:
    one = plan("ring", FULL, 8)
    assert simulate(one, A100, links={(0, 4): 0.001}).makespan == simulate(one, A100).makespan


def test_one_buffer_instead_of_two_makes_transfers_and_attends_take_turns() -> None:
    """The last rank of a causal ring can receive a block only when the one before is attended."""
    one = plan("ring", WORK, 8)
    slow = A100.changed({"intra.bandwidth": 2e10})
    two, one_only = (simulate(one, slow, buffers=n, record=True) for n in (2, 1))
    hop = one.block_bytes("KV")[0] / slow["intra.bandwidth"] + slow["intra.alpha"]
    last = [s for s in rows(one_only) if s.rank == 7]
    attends = [s for s in last if s.stream == "compute"]
    receives = [s for s in last if s.stream == "receive"]
    assert len(receives) == 7
    for receive in receives:
        begun = [a for a in attends if a.name != "attend q 7 x kv 7"]
        assert not any(a.start < receive.start < a.end * (1 - 1e-12) for a in begun)
    assert one_only.makespan > two.makespan + 5 * hop
    assert simulate(one, slow, buffers="plan").makespan == two.makespan


def test_a_full_ring_with_one_buffer_each_is_stuck_and_says_where() -> None:
    """Every rank would have to receive before it may send: nobody can begin."""
    with pytest.raises(PlanError, match=r"stuck in step 1: rank \d cannot send KV \d to rank \d"):
        simulate(plan("ring", FULL, 4), A100, buffers=1)
    assert simulate(plan("ring", FULL, 4), A100, buffers=2).makespan > 0


def test_a_message_keeps_its_buffer_until_all_of_it_was_read() -> None:
    """Rank 1 attends the blocks of a message one after the other; the next one is behind both."""
    owners = {
        "q": [(range(4096), 1)],
        "kv": [(range(n, n + 1024), 0) for n in range(0, 4096, 1024)],
    }
    q, kv = (Side(tuple(Block((p,), range(16), r) for p, r in owners[s])) for s in ("q", "kv"))
    sent = (Move(("KV",), blocks, [0], [1]) for blocks in ([[0, 1]], [[2]], [[3]]))
    attends = [(Attend([1], [[0]], [[block]]),) for block in range(4)]
    moves = (*((move,) for move in sent), (), ())
    steps = tuple(map(Step, ((), *attends), moves))
    work = Workload(seq=4096, heads=16, mask=Full())
    one = Plan("by hand", work, 2, Partition(q, kv), "forward", (), (), steps)
    events = {s.name: s for s in rows(simulate(one, A100, buffers=1, record=True))}
    assert events["send KV 2 to 1"].start >= events["attend q 0 x kv 1"].end * (1 - 1e-12)


def test_copies_that_the_forward_pass_left_take_no_receive_buffer() -> None:
    one = plan("usp:ulysses=2:ring=2", FULL, 4, pass_="backward")
    assert any("KV" in held.tensors for held in one.start)
    assert simulate(one, A100, buffers=1).makespan * ROUNDING >= simulate(one, A100).makespan


@given(plans(), machines)
def test_the_buffers_that_a_plan_states_are_enough(one: Plan, machine: Hardware) -> None:
    prediction = simulate(one, machine, buffers="plan")
    assert prediction.makespan * ROUNDING >= simulate(one, machine).makespan


def test_late_launches_put_transfers_behind_the_first_kernel() -> None:
    one = plan("ring", FULL, 8)
    early, late = (simulate(one, A100, late=late, record=True) for late in (False, True))
    kernel = max(s.end - s.start for s in rows(late) if s.stream == "compute")
    for send in (s for s in rows(late) if s.stream == "send"):
        assert send.start >= kernel * (1 - 1e-12)
    hop = one.block_bytes("KV")[0] / A100["intra.bandwidth"] + A100["intra.alpha"]
    add = max(s.end - s.start for s in rows(late) if s.stream == "merge")
    longer = hop + 6 * max(0.0, hop - add)  # steps 1 to 6 add their results meanwhile
    assert late.makespan == pytest.approx(early.makespan + longer, rel=1e-6)


def test_a_share_of_the_chip_slows_compute_only_while_something_travels() -> None:
    one = plan("ring", FULL, 8)
    free, taken = (simulate(one, A100, share=share) for share in (0.0, 0.1))
    hop = one.block_bytes("KV")[0] / A100["intra.bandwidth"]
    lost = 7 * hop * 0.2  # one message out and one in at a time, 0.1 of the chip each
    assert taken.makespan == pytest.approx(free.makespan + lost, rel=1e-3)
    local = plan("ring", WORK, 1)
    assert simulate(local, A100, share=0.5).makespan == simulate(local, A100).makespan


def test_a_keyword_replaces_a_field_of_the_scenario() -> None:
    one = plan("ring", FULL, 8)
    scenario = Scenario(speeds={3: 0.5}, topology="ring")
    whole, replaced = simulate(one, A100, scenario), simulate(one, A100, scenario, overlap=False)
    assert whole.makespan == simulate(one, A100, topology="ring", speeds={3: 0.5}).makespan
    assert replaced.makespan == simulate(one, A100, replace(scenario, overlap=False)).makespan
    assert replaced.makespan > whole.makespan
    with pytest.raises(FrozenInstanceError):
        scenario.late = True  # type: ignore[misc]
    with pytest.raises(TypeError, match="turbo"):
        simulate(one, A100, turbo=True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"buffers": 0}, "buffers must be a whole number from 1 up, or plan, not 0"),
        ({"buffers": "x"}, "buffers must be a whole number from 1 up, or plan, not 'x'"),
        ({"overlap": "no"}, "overlap must be true or false, not 'no'"),
        ({"share": 1.0}, "a share of the chip below 1, not 1"),
        ({"chunk": 0}, "1 byte or more, not 0"),
        ({"late": True, "overlap": False}, "late launches need overlap"),
        ({"speeds": {8: 0.5}}, "no rank 8 to slow down: ranks are 0..7"),
        ({"speeds": {1: 0.0}}, "rank 1: a speed is 1e-30 to 1e.30, not 0"),
        ({"speeds": {1: 5e-324}}, "rank 1: a speed is 1e-30 to 1e.30, not 4.94"),
        ({"speeds": [1.0] * 7}, "7 speeds for 8 ranks"),
        ({"engine": "magic"}, "unknown engine 'magic'"),
        ({"engine": "recurrence", "buffers": 2}, "wait for buffers, which needs engine"),
        ({"engine": "recurrence", "late": True}, "launched late, which needs engine"),
        ({"topology": "torus:3x3"}, "torus:3x3 has 9 ranks, the plan has 8"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], said: str) -> None:
    with pytest.raises(RingloomError, match=said):
        simulate(plan("ring", WORK, 8), A100, **asked)  # type: ignore[arg-type]


SMALL = ["--ranks", "4", "--seq", "4096", "--heads", "4"]


def test_the_command_line_takes_every_condition(ringloom: CommandLine, tmp_path: Path) -> None:
    under = ["--straggler", "3=0.5", "--slow-link", "2-3=0.1", "--slow-link", "0-1=0.5"]
    under += ["--topology", "ring", "--recv-buffers", "plan", "--engine", "events"]
    trace = tmp_path / "t.json.gz"
    answer = ringloom.json("simulate", "striped", *SMALL, *under, "--trace", str(trace))
    assert answer["engine"] == "events"
    assert answer["critical_path"][-1]["end_s"] == pytest.approx(answer["makespan_s"])
    assert "traceEvents" in json.loads(gzip.decompress(trace.read_bytes()))
    assert "critical path: " in ringloom("simulate", "striped", *SMALL)


def test_the_critical_path_of_a_pair_goes_on_in_the_backward_pass(ringloom: CommandLine) -> None:
    both = ["simulate", "striped", *SMALL, "--pass", "both"]
    legs = (answer := ringloom.json(*both))["critical_path"]
    assert all(a["end_s"] == pytest.approx(b["start_s"]) for a, b in pairwise(legs))
    assert legs[-1]["end_s"] == pytest.approx(answer["makespan_s"])
    assert answer["travelling_sums"] == {"DKV": {"32": 12, "16": 4}}
    shown = ringloom(*both)
    assert "DKV in 32 bit (12 messages), finished in 16 bit (4 messages)" in " ".join(shown.split())
    assert shown.index("critical path, forward: ") < shown.index("critical path, backward: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slow-link", "2-3=cut"], "link 2-3 is cut, and there is no other route from rank 2"),
        (
            ["--slow-link", "2=cut"],
            "--slow-link: links must be like 6-7=0.1, 0-1=cut, not '2=cut'",
        ),
        (["--straggler", "x=1"], "--straggler: speeds must be like 3=0.5, 6=0.8, not 'x=1'"),
        (
            ["--straggler", "3=0.5", "--straggler", "3=0.7"],
            "--straggler: '3=0.5 3=0.7' names a rank or a link twice",
        ),
        (
            ["--slow-link", "2-3=0.5", "--slow-link", "3-2=1"],
            "link 2-3 is named twice, once from either end",
        ),
        (["--no-overlap", "--comm-sm-fraction", "0.1"], "--comm-sm-fraction requires overlap"),
        (
            ["--recv-buffers", "0"],
            "buffers must be a whole number from 1 up, or plan, not 0",
        ),
        (["--recv-buffers", "1", "--mask", "full"], "stuck in step 1: rank"),
        (["--topology", "tours:2x2"], "; did you mean torus?"),
        (["--trace", "t.txt"], "a trace file ends in .json or .json.gz"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    options: list[str], said: str, ringloom: CommandLine
) -> None:
    assert said in ringloom.refused("simulate", "ring", *SMALL, *options)
