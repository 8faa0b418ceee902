"""Python text of numbers: it means what the number means, whatever the signs and periods."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from codegen.jax.repeats import folded
from codegen.text import Names, expression
from planner.loops.form import Expr

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
    names = Names(("outer", "inner"), first, at=None if loop else t, sizes={4: "INNER"})
    text = expression(e, names)
    for outer, inner in np.ndindex(2, 4):
        known = {"outer": outer, "inner": inner, "step": t - first, "INNER": 4}
        assert eval(text, known) == e.at(t, np.array([[outer, inner, 0]]))[0], text


def run(lines: list[str]) -> list[tuple[int, int]]:
    """The calls of `f` in the body of a function."""
    called = list[tuple[int, int]]()
    source = "\n".join(["def body():", *lines])
    known = {"f": lambda *numbers: called.append(numbers)}
    exec(source, known)
    known["body"]()
    return called


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1),
    st.integers(1, 6),
)
def test_lines_that_repeat_are_a_loop_that_means_the_same(
    calls: list[tuple[int, int, bool]], times: int
) -> None:
    lines = [
        f"    f({a + n * up}, {b})" for n in range(times) for a, b, up in [*calls, (0, 0, True)]
    ]
    short = [*folded(lines)]
    assert run(short) == run(lines)
    assert len(short) <= len(lines)
    if times > 2 and len(calls) > 2:
        assert len(short) < len(lines)


def test_what_a_loop_calls_its_number_is_no_name_in_it() -> None:
    lines = [line for n in range(4) for line in ("    n = g()", "    h()", f"    f(n, {n})")]
    assert [*folded(lines)] == lines
