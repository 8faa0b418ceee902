"""Folded statements do what they did before, in the same order, and are fewer."""

from hypothesis import given
from hypothesis import strategies as st

from codegen.torch.folding import joined, looped


def calls(lines: list[str], rank: int = 0) -> list[tuple[str, int]]:
    """The calls of the lines, one after the other."""
    made = list[tuple[str, int]]()
    names = {name: (lambda x, name=name: made.append((name, x))) for name in "abc"}
    exec("\n".join(["if True:", *(lines or ["    pass"])]), names | {"x": range(99), "rank": rank})
    return made


statements = st.builds("    {}(x[{}])".format, st.sampled_from("abc"), st.integers(0, 3))


@given(st.lists(statements, max_size=12))
def test_a_loop_does_what_its_statements_did(lines: list[str]) -> None:
    folded = looped(lines)
    assert calls(folded) == calls(lines)
    assert len(folded) <= len(lines)


def test_statements_whose_numbers_count_on_become_a_loop() -> None:
    rounds = [
        line for n in range(5) for line in (f"    a(x[{n}])", f"    b(x[{n + 2}])", "    c(x[7])")
    ]
    wanted = ["    for n in range(5):", "        a(x[n])", "        b(x[n + 2])", "        c(x[7])"]
    assert looped(["    a(x[9])", *rounds]) == ["    a(x[9])", *wanted]
    assert looped([line for n in range(5) for line in (f"    a(x[{2 * n}])", "    b(x[1])")])[4:]


def test_an_else_stays_with_its_if() -> None:
    lines = list[str]()
    for name in "caaaa":
        lines += ["    if rank:", f"        {name}(x[1])", "    else:", "        b(x[1])"]
    for rank in (0, 1):
        assert calls(looped(lines[:-2]), rank) == calls(lines[:-2], rank)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.booleans()), max_size=8))
def test_an_if_for_several_does_what_each_did(blocks: list[tuple[int, str, bool]]) -> None:
    lines = list[str]()
    for number, (rank, name, whole) in enumerate(blocks):
        test = f"rank == {10 * number + rank} and {whole}"
        lines += [f"    if {test}:", f"        {name}(x[1])"]
        lines += [f"    c(x[{number}])"] * (rank == 0)
    for rank in range(90):
        assert calls(joined(lines), rank) == calls(lines, rank)
    assert len(joined(lines)) <= len(lines)


def test_neighbours_of_one_body_share_an_if() -> None:
    one, other = (
        ["    if rank < 2:", "        a(x[1])"],
        ["    if rank > 5 and rank != 7:", "        a(x[1])"],
    )
    assert joined([*one, *other]) == [
        "    if rank < 2 or (rank > 5 and rank != 7):",
        "        a(x[1])",
    ]
    apart = [*one, "    x = range(3)", *other]
    assert joined(apart) == apart
    chain = [*one, "    else:", "        b(x[1])", *other]
    assert joined(chain) == chain
