"""A search is never slower than compare, says where its time goes, and keeps its limits."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ringloom as rl
from ringloom.cli import main
from ringloom.planner.plans import Passes
from ringloom.planner.verify import verify_pair
from ringloom.searching.gaps import gaps_of
from ringloom.views.units import size

OWN = ("waiting", "merges", "launches", "kernels")  # parts of a gap that are times
GRID = ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1))
MASKS = {
    "documents": rl.Causal() & rl.Documents((9000, 700, 5000, 1200, 484)),
    "window": rl.Causal() & rl.Window(1024),
    "blocks": rl.Blocks(GRID, 4096),
    "causal": rl.Causal(),
}


def workload(mask: rl.Mask) -> rl.Workload:
    return rl.Workload(seq=16384, heads=8, kv_heads=4, mask=mask)


def drawn(random: Random) -> tuple[rl.Workload, int, str, rl.Scenario]:
    """A workload, ranks, a machine and a scenario, at random."""
    seq, ranks = 64 * random.randint(4, 40), random.choice([2, 3, 4, 6])
    cut = random.randint(1, seq - 1)
    grid = tuple(tuple(random.randint(0, 1) for _ in range(4)) for _ in range(4))
    masks: list[rl.Mask] = [
        *(rl.Full(), rl.Causal(), rl.Window(random.randint(1, seq)), rl.Prefix(cut)),
        *(
            rl.Causal() & rl.Documents((cut, seq - cut)),
            rl.Blocks(((1, 1, 1, 1), *grid[1:]), seq // 4),
        ),
    ]
    work = rl.Workload(seq=seq, heads=4, kv_heads=2, head_dim=64, mask=random.choice(masks))
    scenario = rl.Scenario(speeds={0: 0.5}) if random.random() < 0.3 else rl.Scenario()
    return work, ranks, random.choice(["h100", "a100-pcie", "tpu-v5p"]), scenario


@cache
def searched(mask: str, pass_: Passes = "forward") -> rl.SearchResult:
    return rl.search(workload(MASKS[mask]), 4, "h100", pass_=pass_)


@pytest.mark.parametrize(
    ("mask", "pass_"),
    [("documents", "forward"), ("window", "backward"), ("blocks", "both"), ("causal", "both")],
)
def test_a_search_is_never_slower_than_compare_and_its_gap_adds_up(
    mask: str, pass_: Passes
) -> None:
    result = searched(mask, pass_)
    compared = rl.compare(workload(MASKS[mask]), 4, "h100", pass_=pass_)
    assert result.makespan <= compared.rows[0].makespan_s * (1 + 1e-9)
    assert result.makespan == pytest.approx(rl.simulate(result.plans, "h100").makespan)
    assert result.makespan >= result.bound
    assert result.complete
    over = result.makespan - result.bound
    assert sum(gap.seconds for gap in result.why) == pytest.approx(over, abs=1e-12)
    for gap in result.why:
        assert sum(gap.parts.values()) == pytest.approx(gap.seconds, abs=1e-12)
        assert all(gap.parts[name] >= -1e-12 for name in OWN), gap


def test_a_search_splits_the_messages_of_every_schedule_that_compare_splits() -> None:
    work = rl.Workload(seq=256, heads=2, kv_heads=1, head_dim=64, mask=rl.Prefix(64))
    slow = {"speeds": {0: 0.5}}
    fastest = rl.compare(work, 8, "a100-pcie", scenario=slow).rows[0]
    assert fastest.schedule == "startrail --trim blocks"
    result = rl.search(work, 8, "a100-pcie", scenario=slow)
    assert result.makespan <= fastest.makespan_s * (1 + 1e-9)


@pytest.mark.parametrize("mask", ["documents", "blocks"])
def test_both_passes_of_a_search_are_emitted_as_one_program(mask: str) -> None:
    plans = searched(mask, "both").plans
    forward, backward = plans
    assert forward.partition == backward.partition
    for target in ("torch", "jax"):
        assert "def " in rl.emit(plans, target)  # type: ignore[arg-type]


def test_a_recipe_rebuilds_its_plan_and_another_search_finds_it_again() -> None:
    work = workload(MASKS["blocks"])
    first, second = searched("blocks"), rl.search(work, 4, "h100")
    assert first.recipes == second.recipes
    made = rl.rebuild(first.recipes[0], work, 4, "h100")
    assert made == first.plans.forward
    assert made.name == first.recipes[0]


def test_a_recipe_is_rebuilt_for_a_machine_as_it_is() -> None:
    work, slow = workload(MASKS["documents"]), {"speeds": {1: 0.5}}
    result = rl.search(work, 4, "h100", pass_="backward", scenario=slow, budget=4)
    recipes = {*result.recipes, "found:layout=work:grain=50"}
    made = {x: rl.rebuild(x, work, 4, "h100", pass_="backward", scenario=slow) for x in recipes}
    assert made[result.recipes[0]] == result.plans.backward
    assert all(name == plan.name and plan.pass_ == "backward" for name, plan in made.items())
    ordinary = rl.rebuild("found:layout=work:grain=50", work, 4, "h100", pass_="backward")
    assert made[ordinary.name].partition != ordinary.partition, "a slow rank owns as much work"


def test_a_comparison_lists_what_a_search_found() -> None:
    work = workload(MASKS["blocks"])
    result = searched("blocks")
    compared = rl.compare(work, 4, "h100", ["zigzag"], plans=result.plans)
    first, other = compared.rows
    assert (first.schedule, first.added, other.added) == (result.name, True, False)
    assert first.makespan_s == pytest.approx(result.makespan)
    assert first.speedup_vs_ring > 1
    assert f"+: the given plan, {result.name}" in " ".join(str(compared).split())
    with pytest.raises(
        rl.PlanError, match=r"for another workload: forward of .*16384.* on 4 ranks"
    ):
        rl.compare(work, 4, "h100", ["zigzag"], pass_="backward", plans=result.plans)


def test_a_found_schedule_is_one_row_and_is_executed() -> None:
    work = workload(MASKS["causal"])
    result = searched("causal", "both")
    first = result.recipes[0]
    both = rl.compare(work, 4, "h100", [first], pass_="both", plans=result.plans, checked=True)
    assert [row.schedule for row in both.rows] == [result.name]
    assert both.rows[0].exact


@pytest.mark.parametrize(
    "mask",
    [
        rl.Causal() & rl.Documents((100, 9, 60, 4, 67)),
        rl.Causal() & rl.Window(20),
        rl.Blocks(GRID, 60),
    ],
)
def test_plans_of_a_search_are_exact_in_both_passes(mask: rl.Mask) -> None:
    work = rl.Workload(seq=240, heads=4, kv_heads=2, head_dim=4, mask=mask, dtype="float64")
    result = rl.search(work, 3, "h100", pass_="both")
    verify_pair(*result.plans)
    assert rl.check(result.plans).exact, result.recipes


def test_limits_of_memory_and_time_are_kept() -> None:
    work = workload(rl.Causal())
    free = searched("causal")
    peaks = sorted(case.row.peak_bytes for case in rl.compare(work, 4, "h100").cases)
    tight = rl.search(work, 4, "h100", memory=peaks[0])
    assert tight.prediction.peak_bytes <= peaks[0]
    assert tight.makespan >= free.makespan
    with pytest.raises(rl.PlanError, match="needs"):
        rl.search(work, 4, "h100", memory=1000)
    short = rl.search(work, 4, "h100", time_limit=0.0)
    assert not short.complete
    assert short.tried == 1
    both = rl.search(work, 4, "h100", pass_="both", time_limit=0.0)
    assert (both.recipes, both.tried) == (("ring", "ring"), 2)


@pytest.mark.parametrize("pass_", ["forward", "both"])
def test_a_refusal_for_lack_of_memory_names_the_smallest_plans(pass_: Passes) -> None:
    work = rl.Workload(seq=1024, heads=2, head_dim=64)
    with pytest.raises(rl.PlanError) as refused:
        rl.search(work, 4, "h100", pass_=pass_, memory=1000)
    first, *plans = str(refused.value).splitlines()
    least = [rl.simulate(rl.rebuild(plans[0].partition(": ")[0], work, 4, "h100"), "h100")]
    needed = size(least[0].peak_bytes)
    kind = "forward plan" if pass_ == "both" else "plan"
    said = f"no {kind} tried fits: a rank has 1000 B, and the smallest plan needs"
    assert first == f"{said} {needed}"
    assert plans[0].endswith(needed)
    assert len(plans) == 3
    with pytest.raises(rl.PlanError, match=r"tried within 0 s fits: .*\nring: \d.*\Z"):
        rl.search(work, 4, "h100", memory=1000, time_limit=0)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"memory": "lots"}, "memory must be a number of bytes, not 'lots'"),
        ({"memory": float("nan")}, "memory must be at least 0 bytes, not nan"),
        ({"memory": -1}, "memory must be at least 0 bytes, not -1"),
        ({"memory": True}, "memory must be a number of bytes, not True"),
        ({"time_limit": "soon"}, "time_limit must be a number of seconds, not 'soon'"),
        ({"time_limit": -0.5}, "time_limit must be at least 0 seconds, not -0.5"),
        ({"budget": "x"}, "budget 'x' is not a whole number"),
        ({"seed": 0.5}, "seed 0.5 is not a whole number"),
        ({"layout": "spiral"}, "unknown layout 'spiral'"),
        ({"layout": 5}, "layout must be the name of a layout, such as 'zigzag', not 5"),
        ({"pass_": ["both"]}, r"pass_ must be forward, backward or both, not \['both'\]"),
        ({"pass_": "sideways"}, "pass_ must be forward, backward or both, not 'sideways'"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(rl.RingloomError, match=complaint):
        rl.search(workload(rl.Causal()), 4, "h100", **wrong)
    if wrong.keys() <= {"memory", "time_limit"}:
        with pytest.raises(rl.RingloomError, match=complaint):
            rl.compare(workload(rl.Causal()), 4, "h100", **wrong)


def test_runner_ups_of_both_passes_are_pairs_that_fit() -> None:
    work, result = workload(MASKS["causal"]), searched("causal", "both")
    times = [one.makespan for one in result.runner_ups]
    assert len(times) > 3
    assert times == sorted(times)
    assert times[0] >= result.makespan
    families = [one.family for one in result.runner_ups]
    assert len({*families}) == len(families)
    for one in result.runner_ups:
        forward, _, backward = one.recipe.partition(" / ")
        pair = rl.Plans(
            rl.rebuild(forward, work, 4, "h100"),
            rl.rebuild(backward or forward, work, 4, "h100", pass_="backward"),
        )
        verify_pair(*pair)
        assert rl.simulate(pair, "h100").makespan == pytest.approx(one.makespan)


@pytest.mark.parametrize("seed", range(6))
def test_the_parts_of_a_gap_add_up_to_it(seed: int) -> None:
    random = Random(seed)
    work, ranks, machine, scenario = drawn(random)
    pass_: Passes = random.choice(["forward", "backward", "both"])
    result = rl.search(work, ranks, machine, pass_=pass_, scenario=scenario, budget=4)
    over = result.makespan - result.bound
    assert sum(gap.seconds for gap in result.why) == pytest.approx(over, abs=1e-12)
    for gap, plan in zip(result.why, result.plans, strict=True):
        assert (gap.pass_, 0 <= gap.rank < ranks) == (plan.pass_, True)
        assert sum(gap.parts.values()) == pytest.approx(gap.seconds, abs=1e-12)
        assert all(gap.parts[name] >= -1e-12 for name in OWN), gap


def test_a_gap_is_to_the_bound_that_holds_for_both_plans_of_a_pair() -> None:
    """Where one is outside the class of the lower bound, to that of compute and memory."""
    work = rl.Workload(seq=2048, heads=8, mask=rl.Documents((1792, 256)))
    forward, backward = rl.plan("groups", work, 4), rl.plan("zigzag", work, 4, pass_="backward")
    runs = [(plan, rl.simulate(plan, "a100-pcie")) for plan in (forward, backward)]
    assert runs[0][1].bound_inapplicable_reason
    assert not runs[1][1].bound_inapplicable_reason
    assert runs[1][1].compute_bound.seconds < runs[1][1].bound.seconds
    both = gaps_of(runs, rl.hardware("a100-pcie"), rl.Scenario())
    for gap, (_, run) in zip(both, runs, strict=True):
        assert gap.seconds == pytest.approx(run.makespan - run.compute_bound.seconds)
    alone = gaps_of(runs[1:], rl.hardware("a100-pcie"), rl.Scenario())[0]
    assert alone.seconds == pytest.approx(runs[1][1].makespan - runs[1][1].bound.seconds)


def test_a_fixed_layout_is_kept() -> None:
    work = workload(MASKS["documents"])
    kept = rl.search(work, 4, "h100", layout="contiguous").plans
    tokens = work.seq // 4
    for block in kept.first.partition.q.blocks:
        assert all(p[0] // tokens == p[-1] // tokens == block.home for p in block.positions if p)


def test_the_command_saves_what_it_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "plan.json")
    words = "search --ranks 4 --seq 16k --heads 8 --mask window:1024 --hardware h100 --json -o"
    assert main([*words.split(), file]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = rl.load(file)
    assert isinstance(plan, rl.Plan)
    assert document["recipes"] == [plan.name]
    assert rl.simulate(plan, "h100").makespan == pytest.approx(document["makespan_s"])
    assert document["gap"] == pytest.approx(document["makespan_s"] / document["bound_s"] - 1)


def test_a_comparison_adds_a_search_and_says_how_many_plans_it_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "compare --search --ranks 4 --seq 4k --heads 8 --mask window:512 --hardware h100"
    assert main([*words.split(), "--schedules", "zigzag", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    marked = [row["schedule"] for row in document["rows"] if row["added"]]
    assert marked == document["search"]["recipes"]
    assert document["search"]["tried"] > 10
    assert main([*words.split(), "--schedules", "zigzag"]) == 0
    shown = capsys.readouterr().out
    assert f"search: {document['search']['tried']} plans simulated" in shown
    assert f"+: the given plan, {marked[0]}" in " ".join(shown.split())


def test_the_fastest_forward_plan_has_its_own_backward_pass_tried() -> None:
    """Alone, other layouts are faster backward, and then nothing went with the forward plan."""
    work = rl.Workload(seq=32768, heads=16, kv_heads=2, mask=rl.Causal())
    given: Any = {"scenario": rl.Scenario(speeds={3: 0.5})}
    both = rl.search(work, 4, "h100", pass_="both", **given)
    first = rl.search(work, 4, "h100", **given)
    assert both.recipes[0] == first.recipes[0]
    assert both.makespan < 0.011  # 0.013 with the fastest two that happen to fit
    again = [rl.rebuild(p.name, work, 4, "h100", pass_=p.pass_, **given) for p in both.plans]
    assert again == [*both.plans]


def test_the_fastest_backward_plan_has_its_own_forward_pass_tried() -> None:
    """Alone, other layouts are faster forward, and none of them fits with so little memory."""
    work = rl.Workload(seq=2048, heads=4, head_dim=64, mask=rl.Window(100))
    given: Any = {"pass_": "both", "memory": 0.00397 * 2**30}
    fastest = rl.compare(work, 4, "h100", **given).rows[0]
    assert rl.search(work, 4, "h100", **given).makespan <= fastest.makespan_s * (1 + 1e-9)


def test_the_smallest_plan_is_of_the_pass_that_does_not_fit() -> None:
    work = rl.Workload(seq=512, heads=4, head_dim=64, mask=rl.Causal() & rl.Documents((300, 212)))
    said = "no backward plan tried fits: a rank has 439 KiB, and the smallest plan needs"
    with pytest.raises(rl.PlanError) as told:
        rl.search(work, 4, "h100", pass_="both", memory=450_000)
    assert str(told.value).startswith(f"{said} 1 MiB")
