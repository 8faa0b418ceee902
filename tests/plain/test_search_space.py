"""Found plans are exact, their recipes round-trip, and a search finds the same again."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner.analysis.balance import loads
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import owners_of_tokens, sides
from ringloom.planner.search import Candidate, FoundRecipe, Prices, Recipe, Score, build, explore
from ringloom.planner.search.evening import even_out
from ringloom.planner.search.pieces import Owned
from ringloom.planner.verify import verify_pair
from sampling import NIGHTLY
from strategies import workloads

GRID = ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1))
FAMILIES: dict[str, rl.Mask] = {
    "full": rl.Full(),
    "causal": rl.Causal(),
    "window": rl.Causal() & rl.Window(20),
    "documents": rl.Causal() & rl.Documents((50, 9, 30, 4, 27)),
    "prefix": rl.Prefix(30),
    "blocks": rl.Blocks(GRID, 30),
    "chunks": rl.Causal() & rl.Chunks(25),
    "tree": rl.Causal() & rl.Tree((30, 20, 30, 40), (None, 0, 1, 0)),
    "cache": rl.Causal(),
}
WAYS = (
    FoundRecipe("pieces", 7),
    FoundRecipe("pieces", 30, rows="edges", slices=(2,)),
    FoundRecipe("work", 50, rows="edges", own=1),
    FoundRecipe("zigzag", offload=5, slices=(1, 2), rows="whole"),
    FoundRecipe("contiguous", rows="edges", offload=6, own=1, slices=(3,)),
    FoundRecipe("work", 100, relay=2, slices=(2,)),
    FoundRecipe("pieces", 11, relay=2, own=2),
    FoundRecipe("per-document", relay=3, offload=4, rows="edges"),
)


def workload(family: str) -> rl.Workload:
    seq = 37 if family == "cache" else 120
    mask = FAMILIES[family]
    return rl.Workload(
        seq=seq, kv_seq=120, mask=mask, heads=6, kv_heads=3, head_dim=4, dtype="float64"
    )


def prices(ranks: int, slow: float = 1.0, node: int = 0) -> Prices:
    """Calls and merges are cheap beside the pairs, so that work decides."""
    speeds = (slow, *[1.0] * (ranks - 1))
    return Prices(1e-6, 1e-6, 0.0, 1e-8, speeds, node, near=1e-6, far=8e-6)


def scored(prices: Prices, plan: Plan) -> Score:
    """A plan takes as long as the pairs of its busiest rank, and what comes to it."""
    busy = loads(plan).sum(axis=0) * prices.pair / prices.speed_of_ranks(plan.ranks)
    come = np.zeros(plan.ranks)
    for _, move in plan.moves():
        np.add.at(come, move.dst, prices.near * (move.blocks >= 0).sum(axis=1))
    return Score(float((busy + come).max()), tuple(busy.tolist()), 0)


def search(
    work: rl.Workload, ranks: int, pass_: Pass, told: Prices, **options: object
) -> list[Candidate]:
    named = tuple(map(Recipe.parse, ("ring", "zigzag", "allgather:layout=contiguous")))
    given = {"seeds": named} | options
    return [*explore(work, ranks, pass_, told, lambda plan: scored(told, plan), **given)]  # type: ignore[arg-type]


def check_both(way: FoundRecipe, work: rl.Workload, ranks: int, told: Prices) -> None:
    """Both passes compute what dense attention does."""
    forward = build(Recipe(way), work, ranks, "forward", told)
    for keep in (None, ("KV",), ("Q", "KV", "OUT")):
        backward = build(Recipe(replace(way, keep=keep)), work, ranks, "backward", told)
        assert rl.check(verify_pair(forward, backward)).exact, (way, keep)


@pytest.mark.parametrize("family", FAMILIES)
def test_found_plans_are_exact_in_both_passes_under_every_mask(family: str) -> None:
    every = 1 if NIGHTLY else 3  # by day a third of the ways each, which takes a second
    first = [*FAMILIES].index(family) % every
    for way, ranks in [*zip(WAYS, (2, 3, 4, 5, 7, 8, 6, 9), strict=True)][first::every]:
        check_both(way, workload(family), ranks, prices(ranks, slow=0.4, node=way.relay))


@given(workloads(), st.integers(1, 9), st.sampled_from(WAYS), st.sampled_from([1.0, 0.3]))
@settings(max_examples=15)
def test_found_plans_are_exact_for_any_lengths(
    work: rl.Workload, ranks: int, way: FoundRecipe, slow: float
) -> None:
    equal = (len(way.slices),) if sum(way.slices) != work.kv_heads else way.slices
    fitting = replace(way, relay=way.relay * (ranks % max(1, way.relay) == 0), slices=equal)
    check_both(fitting, work, ranks, prices(ranks, slow, way.relay))


@pytest.mark.parametrize("way", WAYS)
def test_a_recipe_is_read_from_its_own_text(way: FoundRecipe) -> None:
    for keep in (None, (), ("Q", "KV")):
        recipe = Recipe(replace(way, keep=keep))
        assert Recipe.parse(str(recipe)) == recipe
    for text in ("usp:ulysses=4", "ring --trim blocks", "allgather:layout=zigzag --by-rows"):
        assert str(Recipe.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("found:layout=pieces", "needs a positive grain"),
        ("found:grain=4:speed=2", "unknown parameter of a found plan 'speed'"),
        ("found:grain=4:layout=heaps", "did you mean 'heap'"),
        ("found:grain=4:slices=0", "must be positive"),
        ("found:grain=4:own=9", "own= of a found plan must be 0, 1 or 2, not 9"),
        ("found:grain=4:keep=DOUT", "unknown tensor to keep"),
        ("found:grain=4 --trim blocks", "takes neither"),
        ("ring --trim some", "unknown trim"),
        ("rings", "did you mean 'ring'"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        Recipe.parse(text)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (FoundRecipe("pieces", 4, slices=(1, 3)), "slices=1-3 must add up to 3 KV heads"),
        (FoundRecipe("pieces", 4, relay=3), "relay=3 of a found plan must divide 4 ranks"),
    ],
)
def test_a_recipe_that_does_not_go_with_heads_or_ranks_is_refused(
    way: FoundRecipe, reason: str
) -> None:
    with pytest.raises(PlanError, match=reason):
        build(
            Recipe(way), replace(workload("causal"), heads=6, kv_heads=3), 4, "forward", prices(4)
        )


@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_the_same_search_finds_the_same_plans(pass_: Pass) -> None:
    told, work = prices(4, slow=0.5), workload("documents")
    first, again = (search(work, 4, pass_, told) for _ in range(2))
    assert [(t.recipe, t.score, t.pruned) for t in first] == [
        (t.recipe, t.score, t.pruned) for t in again
    ]
    best = min((t for t in first if t.score), key=lambda t: t.score.seconds if t.score else 0)
    assert build(Recipe.parse(str(best.recipe)), work, 4, pass_, told) == best.plan


def test_seeds_come_first_and_budgets_count_what_is_found() -> None:
    tried = search(workload("causal"), 4, "forward", prices(4), budget=5)
    assert [str(t.recipe) for t in tried[:3]] == ["ring", "zigzag", "allgather:layout=contiguous"]
    assert len(tried) == 3 + 5
    assert not search(workload("causal"), 4, "forward", prices(4), stop=lambda: True)


def test_a_plan_that_does_not_fit_is_refused_with_its_reason() -> None:
    def full(_: Plan) -> Score:
        raise PlanError("no room")

    tried = [*explore(workload("full"), 2, "forward", prices(2), full, seeds=(), budget=3)]
    assert {t.refused for t in tried} == {"no room"}


def test_what_cannot_beat_the_best_is_not_scored() -> None:
    tried = search(workload("causal"), 4, "forward", prices(4))
    assert any(t.pruned and t.score is None and t.plan is None for t in tried)


def test_rows_of_named_schedules_are_grouped() -> None:
    grid = ((1, 0, 1, 0), (0, 1, 0, 1)) * 2
    work, told = replace(workload("full"), mask=rl.Blocks(grid, 30)), prices(3)
    recipe = Recipe.parse("ulysses --by-rows")
    plan = build(recipe, work, 3, "forward", told)
    assert plan.name == str(recipe)
    assert rl.check(plan).exact
    tried = search(work, 3, "forward", told, seeds=(Recipe.parse("ulysses"),))
    assert any(t.recipe == recipe and t.plan for t in tried)
    with pytest.raises(PlanError, match="makes no rectangle cheaper"):
        build(recipe, workload("full"), 3, "forward", told)


def moved(plan: Plan, tensor: str) -> set[tuple[int, int]]:
    return {
        (int(a), int(b))
        for _, m in plan.moves()
        if tensor in m.tensors
        for a, b in zip(m.src, m.dst, strict=True)
    }


def test_rows_of_a_slow_rank_run_elsewhere() -> None:
    work, told = workload("full"), prices(4, slow=0.5)
    plan = build(Recipe(FoundRecipe("contiguous", offload=3)), work, 4, "forward", told)
    assert {src for src, _ in moved(plan, "Q")} == {0} == {dst for _, dst in moved(plan, "OUT")}
    done = loads(plan).sum(axis=0)
    assert done[0] < 0.6 * done[1:].mean()
    tried = search(work, 4, "forward", told, seeds=())
    best = min((t for t in tried if t.score), key=lambda t: t.score.seconds if t.score else 0)
    assert best.family == "offload"


def test_keys_go_into_each_node_once_and_are_passed_on_there() -> None:
    work, told = workload("full"), prices(6, node=3)
    plain, relayed = (
        build(Recipe(FoundRecipe("contiguous", relay=r)), work, 6, "forward", told) for r in (0, 3)
    )

    def far(plan: Plan) -> int:
        return sum(
            int(((m.blocks >= 0) * (m.src // 3 != m.dst // 3)[:, None]).sum())
            for _, m in plan.moves()
        )

    assert far(plain) == 18
    assert far(relayed) == 6
    owners = plain.partition.kv.owners
    assert any((owners[m.blocks[:, 0]] != m.src).any() for _, m in relayed.moves())


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_a_fixed_layout_is_the_layout_of_every_candidate(layout: str) -> None:
    work, told = workload("documents"), prices(4, slow=0.5)
    tried = search(work, 4, "forward", told, layout=layout)
    plans = [t.plan for t in tried if t.plan]
    assert len(plans) > 5
    want = owners_of_tokens(sides(work, 4, layout)[0], work.seq)
    for plan in plans:
        for side in (plan.partition.q, plan.partition.kv):
            have = owners_of_tokens(((b.positions, b.home) for b in side.blocks), work.seq)
            assert np.array_equal(have, want), plan.name
    assert {t.family for t in tried if t.plan} & {"found", "offload"}


def test_a_schedule_with_a_layout_of_its_own_is_refused_where_the_layout_is_fixed() -> None:
    given = {"seeds": (Recipe.parse("balanced"),), "layout": "zigzag", "budget": 0}
    (tried,) = search(workload("full"), 4, "forward", prices(4, slow=0.5), **given)
    assert tried.score is None
    assert tried.refused == "its layout of tokens is not zigzag"


def test_stripes_are_not_cut_into_found_plans() -> None:
    with pytest.raises(PlanError, match="stripes of tokens"):
        build(Recipe(FoundRecipe("striped")), workload("full"), 4, "forward", prices(4))


def test_swaps_of_unlike_pieces_even_out_work_and_keep_tokens() -> None:
    work = rl.Workload(seq=4096, heads=6, kv_heads=3, mask=rl.Causal())
    late = Owned(tuple(range(1024 * n, 1024 * n + 1024) for n in range(4)), np.arange(4))
    even = even_out(work, 4, prices(4), late)
    covered = sorted(token for piece in even.pieces for token in piece)
    assert covered == [*range(4096)]
    assert np.bincount(even.ranks, [*map(len, even.pieces)]).tolist() == [1024] * 4
    busy = np.bincount(even.ranks, [sum(piece) for piece in even.pieces])
    assert busy.max() < 1.2 * busy.mean()  # 1.75 as it was
