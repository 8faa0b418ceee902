"""Plans that searches find run exactly as JAX programs."""

import pytest

from dense_attention import assert_dense
from jax_devices import jax
from jax_in_numpy import replay
from ringloom.runtimes import backends
from ringloom.runtimes.arrays import draw
from sampling import NIGHTLY
from small_searches import PROGRAMS, in_float64, search_freely

COMPILED = [*PROGRAMS] if NIGHTLY else ["cache"]  # the others are replayed in numpy


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_found_plans_are_exact(name: str) -> None:
    plans = in_float64(search_freely(PROGRAMS[name]).plans)
    inputs = draw(plans.workload, 0)
    assert_dense(plans.workload, inputs, replay(plans, *inputs))
    if name in COMPILED:
        with jax.enable_x64(True):
            assert_dense(plans.workload, inputs, backends.run(plans, *inputs, backend="jax"))
