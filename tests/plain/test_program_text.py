"""Python text of numbers: it means what the number means, whatever the signs and periods."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringloom.codegen.words import Words
from ringloom.planner.loops.form import Expr

SMALL = st.integers(-3, 3)
EXPRESSIONS = st.builds(
    Expr,
    constant=st.integers(-9, 9),
    step=SMALL,
    axes=st.tuples(SMALL, SMALL) | st.just(()),
    modulo=st.sampled_from([0, 0, 4, 7]),
    period=st.integers(1, 3),
    phase=st.integers(0, 2),
)


@given(EXPRESSIONS, st.integers(0, 2), st.booleans(), st.integers(0, 8))
def test_an_expression_is_worth_what_it_says(e: Expr, first: int, loop: bool, t: int) -> None:
    steps = range(first, 9) if loop else range(t, t + 1)
    text = Words((2, 4), steps, loop, ("outer", "inner")).number(e)
    for outer, inner in np.ndindex(2, 4):
        known = {"outer": outer, "inner": inner, "step": t}
        assert eval(text, known) == e.at(t, np.array([[outer, inner, 0]]))[0], text
