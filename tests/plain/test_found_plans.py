"""Plans that searches find are exact: any masks, ranks, heads, machines and speeds."""

import pytest

import ringloom as rl
from sampling import NIGHTLY
from small_searches import drawn, in_float64, search_freely

CASES = range(60 if NIGHTLY else 9)


@pytest.mark.parametrize("number", CASES)
def test_found_plans_are_exact_in_both_passes(number: int) -> None:
    one = drawn(number)
    result = search_freely(one)
    assert all(recipe.startswith("found:") for recipe in result.recipes)
    assert not result.refused, "the verifier refuses what a recipe builds"
    assert rl.check(in_float64(result.plans)).exact, (one, result.recipes)
