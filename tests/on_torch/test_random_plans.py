"""Torch programs of random plans, verified: exact as loops, or no loops."""

import pytest

from printed_loops import check_random_plans

pytest.importorskip("torch")

from rank_threads import assert_exact, load


def test_loops_of_random_plans_are_exact() -> None:
    check_random_plans("torch", lambda source, plans: assert_exact(load(source), plans))
