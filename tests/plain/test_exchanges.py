"""All-to-alls of heads: copies at both ends, and many senders to one receiver across nodes."""

from collections import defaultdict
from itertools import product

import pytest

from ringloom.planner.ir import TENSORS, Move, Pass, Plan
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload
from ringloom.simulator.confidence import interval, spread
from ringloom.simulator.engines.choice import Engine
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.prediction import simulate
from ringloom.simulator.scenario import Scenario
from ringloom.simulator.timeline import Rows

H100 = hardware("h100")
COPIED: dict[Pass, tuple[str, ...]] = {
    "forward": ("Q", "KV", "OUT"),
    "backward": ("DOUT", "DQ", "DKV"),  # the rest is there from the forward pass
}


def unpacking(one: Plan, machine: Hardware) -> dict[tuple[int, int], float]:
    """Seconds of copying by step and rank."""
    rows = (row for row in rows_of(one, machine) if row.kind == "unpack")
    seconds = defaultdict[tuple[int, int], float](float)
    for row in rows:
        assert isinstance(row.node, Move)
        for rank, start, end in zip(row.node.dst.tolist(), row.start, row.end, strict=True):
            seconds[row.step, rank] += float(end - start)
    return seconds


def rows_of(one: Plan, machine: Hardware) -> tuple[Rows, ...]:
    timeline = simulate(one, machine, record=True).timeline
    assert timeline is not None
    assert timeline.rows is not None
    return timeline.rows


@pytest.mark.parametrize(
    ("machine", "messages", "copies"), [("a100-nvlink", 639e-6, 273e-6), ("h100", 426e-6, 162e-6)]
)
def test_an_all_to_all_copies_as_long_as_was_measured(
    machine: str, messages: float, copies: float
) -> None:
    """One exchange of Ulysses, three tensors, of 8 GPUs: published, and fitted to nothing."""
    on = hardware(machine)
    sent = (messages - 14 * on["intra.alpha"]) * on["intra.bandwidth"]
    tokens = 8 * round(sent / 7 / (3 * 16 * 128 * 2))
    one = plan("ulysses", Workload(seq=8 * tokens, heads=16), 8)
    arrivals = [r.arrival.max() for r in rows_of(one, on) if (r.step, r.kind) == (0, "message")]
    assert max(arrivals) == pytest.approx(messages, rel=0.01)
    of_step = [seconds for (step, _), seconds in unpacking(one, on).items() if step == 0]
    assert len(of_step) == 8
    assert of_step == pytest.approx([copies] * 8, rel=0.13)


@pytest.mark.parametrize(
    ("schedule", "ranks", "pass_"),
    [
        *product(("ulysses",), (2, 8), ("forward", "backward")),
        *product(("usp:ulysses=4",), (8,), ("forward", "backward")),
        ("ulysses", 16, "forward"),  # of its backward pass the gradients of a head are added, too
    ],
)
def test_each_tensor_of_an_all_to_all_is_copied_whole_at_both_ends(
    schedule: str, ranks: int, pass_: Pass
) -> None:
    work = Workload(seq=2**14, heads=16, kv_heads=8)
    one = plan(schedule, work, ranks, pass_=pass_)
    expected = 0.0
    for tensor in COPIED[pass_]:
        kind, heads = TENSORS[tensor], 8 if TENSORS[tensor].side == "kv" else 16
        each = 2 * kind.elements(work) + 4 * kind.scalars
        # A head that several ranks need is laid out for each of them.
        alike = max(1, ranks // work.kv_heads) if kind.side == "kv" else 1
        expected += 4 * work.seq / ranks * heads * alike * each
    copied = sum(s for (_, rank), s in unpacking(one, H100).items() if rank == 0)
    assert copied * H100["memory.bandwidth"] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["ring", "allgather", "llama3", "double-ring", "multi-ring"])
def test_nothing_else_is_packed(schedule: str) -> None:
    one = plan(schedule, Workload(seq=2**14, heads=16, kv_heads=8), 8, pass_="backward")
    assert not unpacking(one, H100)


def test_incast_slows_all_to_alls_across_nodes_alone() -> None:
    crowded, work = H100.changed({"inter.incast": 2}), Workload(seq=2**16, heads=32, kv_heads=8)

    def slowed(schedule: str, ranks: int, engine: Engine) -> float:
        one = plan(schedule, work, ranks)
        now, before = (simulate(one, m, engine=engine).makespan for m in (crowded, H100))
        return now / before

    assert [slowed(name, 8, "auto") for name in ("ulysses", "zigzag")] == [1, 1]
    assert [slowed(name, 16, "auto") for name in ("zigzag", "allgather", "usp:ulysses=8")] == [
        1
    ] * 3
    assert 1.2 < slowed("ulysses", 16, "recurrence") < 1.3
    assert slowed("ulysses", 16, "events") == pytest.approx(slowed("ulysses", 16, "recurrence"))


def test_incast_makes_the_interval_longer_at_its_slow_end_alone() -> None:
    plans = Plans(plan("ulysses", Workload(seq=2**16, heads=32, kv_heads=8), 16))
    own = spread(plans, H100, Scenario(), calibrated=False)
    assert own["inter.incast"] > 0.2
    others = {key: part for key, part in own.items() if key != "inter.incast"}
    (low, high), (near, far) = (interval(H100, "forward", 1.0, parts) for parts in (own, others))
    assert low == near
    assert high > 1.1 * far
