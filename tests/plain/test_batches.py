"""Batches of packed documents: one settled recipe, plans and tables by lengths."""

from dataclasses import replace

import numpy as np
import pytest

from ringloom.batches import BatchPlanner, Choice, batch_planner, draw_samples
from ringloom.codegen import mask_tables
from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.masks import Causal, Documents, Window
from ringloom.planner.search import Recipe
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload

WORK = Workload(seq=256, heads=4, kv_heads=2, head_dim=16, mask=Causal())


@pytest.fixture(scope="module")
def planner() -> BatchPlanner:
    return batch_planner(WORK, 4, "h100")


@pytest.mark.parametrize("lengths", [(100, 156), (1,) * 9 + (300,), (7,)])
def test_a_batch_has_the_plans_and_tables_of_its_documents(
    planner: BatchPlanner, lengths: tuple[int, ...]
) -> None:
    batch = planner(lengths)
    tokens = sum(lengths)
    work = replace(WORK, seq=tokens, kv_seq=tokens, mask=Causal() & Documents(lengths))
    assert {plan.pass_ for plan in batch.plans} == {"forward", "backward"}
    for plan in batch.plans:
        assert plan.workload == work
        verify(plan)
    made = mask_tables(batch.plans, "torch")
    assert made.keys() == batch.tables.keys()
    assert all(np.array_equal(made[name], batch.tables[name]) for name in made)


def test_batches_of_the_same_lengths_are_planned_once(planner: BatchPlanner) -> None:
    assert planner([100, 156]) is planner(np.array([100, 156]))
    assert planner([156, 100]) is not planner([100, 156])


def test_the_fastest_recipe_of_the_samples_is_settled_whoever_settles() -> None:
    samples = [(200, 30, 26), (256,)]
    first, again = (batch_planner(WORK, 4, "h100", samples=samples) for _ in range(2))
    assert first.ranked == again.ranked
    seconds = [x for _, x in first.ranked]
    assert seconds == sorted(seconds)
    assert str(first.ranked[0][0]) == first.recipe == first(samples[0]).recipe


def test_a_forward_pass_alone_and_other_masks() -> None:
    work = replace(WORK, mask=Causal() & Window(64))
    batch = batch_planner(work, 2, "h100", samples=[(128, 128)], pass_="forward")((56, 200))
    assert [plan.pass_ for plan in batch.plans] == ["forward"]
    assert batch.plans.first.workload.mask == Causal() & Window(64) & Documents((56, 200))


def test_what_cannot_be_built_leaves_the_next_recipe() -> None:
    """Rows that see the same keys are found under some thousands of edges, not under more."""
    planner = batch_planner(WORK, 4, "h100", samples=[(256,)], pass_="forward")
    first, then = (Recipe.parse(x) for x in ("found:layout=contiguous:rows=edges", "zigzag"))
    planner.ranked = (Choice(first, None), 1.0), (Choice(then, None), 2.0)
    assert [planner([1] * count).recipe for count in (200, 5000)] == [str(first), "zigzag"]


def test_drawn_batches_fill_their_tokens() -> None:
    for tokens in (1, 63, 64, 100_000):
        batches = draw_samples(tokens, 0)
        assert {sum(lengths) for lengths in batches} == {tokens}
        assert batches == draw_samples(tokens, 0)
        assert all(min(lengths) > 0 for lengths in batches)
    assert draw_samples(100_000, 0) != draw_samples(100_000, 1)


def test_wrong_requests_are_refused(planner: BatchPlanner) -> None:
    with pytest.raises(PlanError, match="seq and kv_seq must be equal"):
        batch_planner(replace(WORK, kv_seq=512), 4, "h100")
    with pytest.raises(RingloomError, match="'forward' or 'both', not 'backward'"):
        batch_planner(WORK, 4, "h100", pass_="backward")  # type: ignore[arg-type]
    for wrong in ([], [0], [-1, 4], [2.5, 4]):
        with pytest.raises(PlanError):
            planner(wrong)  # type: ignore[arg-type]
