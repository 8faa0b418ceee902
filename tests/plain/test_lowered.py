"""Lowering: what is said once for all targets says what the loops say."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from codegen.lowered.conditions import Domain, both, bounds, conditions, needed, on_arrays, times
from codegen.text import Names
from planner.errors import PlanError
from planner.loops.form import Expr, Guard, Loops, When

NUMBERS = st.builds(Expr, st.integers(-3, 8), st.integers(-2, 2), modulo=st.sampled_from([0, 6]))
MESHES = st.sampled_from([(6,), (2, 3)])


@st.composite
def statements(draw: st.DrawFn) -> tuple[When, Domain, Names]:
    """The steps and ranks of a statement, among steps in which it is asked."""
    mesh, first = draw(MESHES), draw(st.integers(0, 2))
    axes = st.integers(-1, len(mesh) - 1)
    bound = st.tuples(axes, st.none() | NUMBERS, st.none() | NUMBERS)
    guard = Guard(tuple(draw(st.lists(bound.filter(lambda b: any(b)), max_size=2))))
    begin, every = draw(st.integers(first, first + 2)), draw(st.integers(1, 3))
    last, width = begin + draw(st.integers(0, 5)), draw(st.integers(1, every))
    sizes = dict(zip(mesh, ("RANKS",) if len(mesh) == 1 else ("OUTER", "INNER"), strict=True))
    names = Names(("rank",) if len(mesh) == 1 else ("outer", "inner"), first, sizes=sizes)
    domain = Domain(Loops(mesh, 9, ()), range(first, last + 1 + draw(st.integers(0, 2))))
    return When(begin, last, every, width, guard), domain, names


def on_one_rank(text: str, domain: Domain, names: Names) -> list[list[bool]]:
    """Where a condition holds: by asking each rank in each step, in plain Python."""
    places = [
        dict(zip((*names.axes, "rank"), map(int, at), strict=False)) for at in coordinates(domain)
    ]
    return [
        [
            bool(eval(text or "True", {}, names.values | at | {"step": t - names.first}))
            for at in places
        ]
        for t in domain.steps
    ]


def coordinates(domain: Domain) -> list[list[int]]:
    rows = domain.loops.coordinates()
    return [row[: 1 if len(domain.loops.mesh) == 1 else None].tolist() for row in rows]


@given(statements())
def test_conditions_hold_on_the_steps_and_ranks_of_their_statement(
    given: tuple[When, Domain, Names],
) -> None:
    when, domain, names = given
    try:
        said = conditions(when, domain, names)
    except PlanError:
        assume(False)
    meant = [
        [bool(x) for x in when.guard.at(t, domain.loops.coordinates()) & when.on(t)]
        for t in domain.steps
    ]
    assert on_one_rank(both(said), domain, names) == meant
    if said:
        assert domain.evaluate(on_arrays(said), names).tolist() == meant


@given(st.sets(st.integers(0, 7), min_size=1))
def test_some_steps_are_said_or_refused(steps: set[int]) -> None:
    domain, names = Domain(Loops((2,), 8, ()), range(8)), Names(("rank",))
    try:
        text = both(times(sorted(steps), domain, names))
    except PlanError:
        assert len(steps) > 2
        return
    assert {t for t in range(8) if eval(text or "True", {"step": t})} == steps


def test_a_condition_that_holds_anyway_is_not_asked() -> None:
    domain, names = Domain(Loops((8,), 8, ()), (1, 2, 3)), Names(("rank",))
    anyway, asked = (0, Expr(0), Expr(7)), (0, Expr(4), None)
    said = [*bounds(Guard((anyway, asked)), domain, names)]
    everywhere = domain.evaluate("", names)
    assert on_arrays(needed(said, everywhere)) == "rank >= 4"
    assert both(needed(said[:1], everywhere)) == ""


def test_what_arrays_cannot_ask_is_refused() -> None:
    domain, names = Domain(Loops((8,), 8, ()), (0,)), Names(("rank",))
    said = [*bounds(Guard(ranks=((1, 5),)), domain, names)]
    assert both(said) == "rank in (1, 5)"
    with pytest.raises(PlanError, match="list of ranks"):
        on_arrays(said)
    with pytest.raises(PlanError, match="first and last steps of each rank"):
        list(bounds(Guard(spans=((0, 1),) * 8), domain, names))
