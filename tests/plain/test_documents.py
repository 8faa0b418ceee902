"""Packed documents: messages go as far as documents reach, which is a number of each rank."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.codegen import emit
from ringloom.planner.loops import recover
from ringloom.planner.loops.form import Send
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.workload import Workload

TOKENS = 16  # of a rank, and of a document on average


def lengths(seed: int, ranks: int) -> str:
    """As many documents as ranks, of random lengths."""
    seq = TOKENS * ranks
    cuts = sorted(random.Random(seed).sample(range(1, seq), ranks - 1))
    ends = zip([0, *cuts], [*cuts, seq], strict=True)
    return "documents:" + ",".join(str(last - first) for first, last in ends)


def pair(schedule: str, ranks: int, seed: int, causal: bool) -> Plans:
    """A plan of both passes."""
    mask = "causal & " * causal + lengths(seed, ranks)
    work = Workload(seq=TOKENS * ranks, mask=mask, heads=1, head_dim=4)
    return plan(schedule, work, ranks, pass_="both")


@given(st.integers(4, 32), st.integers(0, 99))
def test_keys_travel_as_far_as_documents_reach(ranks: int, seed: int) -> None:
    """One statement says so, whatever the documents are."""
    forward, _ = pair("ring", ranks, seed, causal=True)
    assert len([s for s in recover(forward).statements if isinstance(s, Send)]) <= 1


@pytest.mark.parametrize("schedule", ["ring", "balanced"])
@given(st.sampled_from((4, 7, 8, 11, 16)), st.integers(0, 9))
def test_programs_of_causal_documents_are_loops(schedule: str, ranks: int, seed: int) -> None:
    """Emission runs them, and would print tables if they were not exact."""
    plans = pair(schedule, ranks, seed, causal=True)  # whose loops both programs share
    assert all("(regular)" in emit(plans, target) for target in ("torch", "jax"))


@pytest.mark.parametrize(
    ("schedule", "target", "ranks", "seed", "causal"),
    [
        ("balanced", "torch", 4, 5, True),  # some owners keep sums where they have had others
        ("ring", "jax", 4, 0, True),  # ranks that are not to send have sums
        ("ring", "torch", 4, 0, False),  # some ranks get keys later than others attend to the like
        ("ring", "torch", 7, 0, False),  # owners keep sums to which others come from both sides
        ("balanced", "torch", 11, 2, False),  # a value begins in a loop whose variable another has
        ("ring", "jax", 7, 0, False),  # one rectangle of a step takes no mask where others do
    ],
)
def test_programs_of_unusual_documents_are_loops(
    schedule: str, target: str, ranks: int, seed: int, causal: bool
) -> None:
    assert "(regular)" in emit(pair(schedule, ranks, seed, causal), target)


def test_many_ranks_have_exact_loops() -> None:
    """Emission runs all of them."""
    plans = pair("ring", 64, 1, causal=True)
    assert all("(regular)" in emit(plans, target) for target in ("torch", "jax"))
