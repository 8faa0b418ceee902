"""Python text of numbers: it means what the number means, whatever the signs and periods."""

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from codegen.text import Names, expression
from codegen.torch.passes import joined
from codegen.torch.state import Lines
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


LINES = st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.booleans(), st.booleans())


def calls(blocks: list[Lines], rank: int) -> list[str]:
    """The calls of blocks, whatever their order is."""
    made = list[str]()
    for when, lines in blocks:
        if eval(when or "True", {"rank": rank}):
            exec("\n".join(lines), {name: partial(made.append, name) for name in "ab"})
    return sorted(made)


@given(st.lists(LINES, max_size=8))
def test_a_condition_for_several_blocks_holds_where_one_of_theirs_did(
    drawn: list[tuple[int, str, bool, bool]],
) -> None:
    blocks = list[Lines]()
    for number, (rank, name, narrow, asks) in enumerate(drawn):
        when = f"rank == {10 * number + rank}" + " and rank > 3" * narrow
        blocks.append((when if asks else "", [f"{name}()"]))
    for rank in range(90):
        assert calls(joined(blocks), rank) == calls(blocks, rank)
    asked = [lines for when, lines in joined(blocks) if when]
    assert len(blocks) > 4 or len(asked) == len({tuple(lines) for lines in asked})
