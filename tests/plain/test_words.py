"""Numbers and conditions of the IR as Python: the text means what the data says."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringloom.codegen.conditions import RANK, Bound, Every, Listed, Span, Steps, Test, holds
from ringloom.codegen.jax.traced import Traced
from ringloom.codegen.words import AXES, Data, Words
from ringloom.planner.loops.form import Expr, Loops

MESHES = st.sampled_from([(6,), (2, 3), (2, 2, 2)])
SMALL = st.integers(-9, 9)


@st.composite
def numbers(draw: st.DrawFn, mesh: tuple[int, ...]) -> Expr:
    """Numbers that depend on the step, with an outer clock perhaps, and on the coordinates."""
    axes = draw(st.tuples(*[st.integers(-3, 3)] * len(mesh)) | st.just(()))
    period = draw(st.integers(1, 3))
    phase = draw(st.integers(0, period - 1))
    modulo, step = draw(st.sampled_from([0, 5])), draw(st.integers(-3, 3))
    return Expr(draw(SMALL), step, axes, modulo, (), period, phase)


@st.composite
def any_test(draw: st.DrawFn, mesh: tuple[int, ...]) -> Test:
    """Any test; bounds are around the end of an axis, too."""
    ranks = int(np.prod(mesh))
    size = st.integers(0, 7)
    axis = draw(st.integers(RANK, len(mesh) - 1))
    low, high = (draw(st.none() | numbers(mesh)) for _ in range(2))
    choices = (
        st.builds(Steps, st.none() | size, st.none() | size),
        st.builds(Every, size, st.integers(1, 4), st.integers(1, 3)),
        st.just(Bound(axis, low, high)),
        st.sets(st.integers(0, ranks - 1), min_size=1).map(lambda x: Listed(tuple(sorted(x)))),
        st.builds(Span, *[st.tuples(*[size] * ranks)] * 2),
    )
    return draw(st.one_of(choices))


def meaning(text: str, words: Words, data: Data, t: int) -> list[object]:
    """The value of a text on each rank in a step.

    Where ranks are traced, a text gets those of all ranks in one array: Python can ask for none.
    """
    where = Loops(words.mesh, 0, ()).coordinates()
    if isinstance(words, Traced):
        at: dict[str, object] = {**dict(zip(words.axes, where.T, strict=False)), "jnp": np}
        value = eval(text, {"__builtins__": {}}, data | at | {"rank": where[:, -1], "step": t})
        return list(np.broadcast_to(value, len(where)).tolist())
    axes = where.tolist()
    names = [dict(zip(words.axes, at, strict=False)) | {"rank": at[-1], "step": t} for at in axes]
    return [eval(text, {"__builtins__": {}}, data | each) for each in names]


@st.composite
def cyclic(draw: st.DrawFn) -> Bound:
    """A bound at both ends of one axis: it rises everywhere, nowhere, or on some ranks."""
    ends = (Expr(draw(st.integers(0, 7)), 0, (draw(st.integers(0, 1)),)) for _ in range(2))
    return Bound(0, *ends)


FRAMES = [(range(8), True), (range(2, 7), True), (range(3, 4), False), (range(1), False)]


KINDS = Words, Traced


def words_of(mesh: tuple[int, ...], steps: range, loop: bool, kind: type[Words] = Words) -> Words:
    return kind(mesh, steps, loop, AXES[len(mesh)])


@settings(max_examples=200, deadline=None)
@given(MESHES.flatmap(lambda mesh: st.tuples(st.just(mesh), numbers(mesh))))
def test_a_printed_number_is_the_number(drawn: tuple[tuple[int, ...], Expr]) -> None:
    mesh, e = drawn
    where = Loops(mesh, 0, ()).coordinates()
    for (steps, loop), tabled, kind in product(FRAMES, (False, True), KINDS):
        words = words_of(mesh, steps, loop, kind)
        if tabled:
            e = Expr(e.constant, e.step, e.axes, 5, (7, 3, 9, 1, 4), e.period, e.phase)
        text = words.number(e)
        for t in steps:
            assert meaning(text, words, words.data, t) == e.at(t, where).tolist(), text


@settings(max_examples=200, deadline=None)
@given(MESHES.flatmap(lambda mesh: st.tuples(st.just(mesh), st.lists(any_test(mesh), max_size=3))))
def test_a_printed_condition_holds_where_the_condition_does(
    drawn: tuple[tuple[int, ...], list[Test]],
) -> None:
    mesh, tests = drawn
    assert_means(mesh, tests)


@settings(max_examples=100, deadline=None)
@given(cyclic())
def test_a_printed_bound_holds_around_the_end_of_an_axis(bound: Bound) -> None:
    assert_means((6,), [bound])


def assert_means(mesh: tuple[int, ...], tests: list[Test]) -> None:
    where = Loops(mesh, 0, ()).coordinates()
    for (steps, loop), kind in product(FRAMES, KINDS):
        words = words_of(mesh, steps, loop, kind)
        text = words.condition(tuple(tests)) or "True"
        for t in steps:
            wanted = holds(tuple(tests), [t], where)[0].tolist()
            assert [bool(x) for x in meaning(text, words, words.data, t)] == wanted, text


def test_a_cyclic_bound_is_printed_as_one() -> None:
    words = words_of((8,), range(4), True)
    text = words.condition((Bound(0, Expr(7), Expr(0)),))
    assert text == "(rank >= 7 or rank <= 0)"
    assert words.condition((Bound(0, Expr(0, 1), None),)) == "rank >= step"
    assert words.condition((Steps(1, 3), Bound(0, Expr(2), Expr(2)))) == "step >= 1 and rank == 2"


def test_what_is_printed_is_noted_as_used() -> None:
    words = words_of((2, 4), range(4), True)
    words.number(Expr(1, 1, (0, 2)))
    assert {"inner", "step"} <= words.used
    assert "outer" not in words.used
