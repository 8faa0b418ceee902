"""Terminals: colour, bars and progress on them, plain text everywhere else, eighty columns."""

import io
import re

import pytest
from rich.console import Console

import ringloom as rl
from ringloom.cli import output
from ringloom.cli.output import progress, working
from ringloom.comparison import compare
from ringloom.planner.analysis.balance import loads
from ringloom.views import tables
from ringloom.views.grids import grid, legend
from ringloom.views.units import SHOWN, both_ends, seconds

WORK = rl.Workload(seq=4096, heads=8, mask=rl.Causal())
NAMES = ["ring", "striped", "usp:ulysses=2:ring=4"]


def on_terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")


def shown(*pictures: object) -> tuple[str, str]:
    """Return the text of a terminal: with its colours, and without."""
    console = on_terminal()
    for picture in pictures:
        console.print(picture)
    raw = console.file.getvalue()
    return raw, re.sub(r"\x1b\[[0-9;]*m", "", raw)


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    rows = compare(WORK, 8, "a100-nvlink", NAMES).rows
    raw, plain = shown(*tables.bars(rows, on_terminal()))
    lines = [line for line in plain.splitlines() if line.startswith(tuple(NAMES))]
    slowest = max(row.makespan_s for row in rows)
    for line, row in zip(lines, rows, strict=True):
        assert line.count("█") == pytest.approx(tables.BAR * row.makespan_s / slowest, abs=1)
        assert ("waits" in line) is bool(row.exposed_comm_s)
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b[36m" in raw


def test_loads_have_a_bar_per_rank() -> None:
    plan = rl.plan("ring", WORK, 8)
    _, plain = shown(*tables.load_bars(plan, on_terminal()))
    total = loads(plan).sum(axis=0)
    lengths = [line.count("█") for line in plain.splitlines()[1:]]
    assert lengths == [round(tables.BAR * pairs / total.max()) for pairs in total.tolist()]


def test_bars_are_shorter_beside_long_names_and_in_narrow_windows() -> None:
    names = ["ring", "usp:ulysses=2:order=context", "allgather:layout=per-document:node=4"]
    rows = compare(WORK, 8, "a100-nvlink", names, variants=False).rows
    terminal = Console(file=io.StringIO(), force_terminal=True, width=50, color_system=None)
    terminal.print(
        *tables.bars(rows, terminal), *tables.load_bars(rl.plan("ring", WORK, 8), terminal)
    )
    text = terminal.file.getvalue()
    assert "…" not in text  # which stood for the ends of the longest ones
    lengths = [line.count("█") for line in text.splitlines() if "█" in line]
    wanted = [row.makespan_s / max(row.makespan_s for row in rows) for row in rows]
    assert lengths[:3] == pytest.approx([max(lengths[:3]) * share for share in wanted], abs=1)


def test_grids_colour_a_block_alike_wherever_it_is() -> None:
    plan = rl.plan("ring", rl.Workload(seq=4096, heads=8, mask=rl.Full()), 8)
    raw, _ = shown(grid(plan, 80))
    colours: dict[str, set[str]] = {}
    for style, kv in re.findall(r"\x1b\[([0-9;]+)m\d,(\d)\x1b", raw):
        colours.setdefault(kv, set()).add(style)
    assert len(colours) == 8
    assert {len(styles) for styles in colours.values()} == {1}
    assert len({styles.pop() for styles in colours.values()}) == 8


def test_a_grid_that_is_too_wide_says_how_much_of_it_is_drawn() -> None:
    plan = rl.plan("zigzag", rl.Workload(seq=65536), 8)
    assert grid(plan, 80).caption == "showing 6 of 8 rounds and 8 of 8 ranks"
    assert grid(plan, 200).caption is None


def test_cells_of_parted_heads_say_pieces_and_query_heads() -> None:
    work = rl.Workload(seq=4096, heads=8, kv_heads=4)
    for schedule, last in (("ulysses", "0-3,0-3 h6-7◣"), ("llama3", "3-4,0-4 h6-7◣")):
        plan = rl.plan(schedule, work, 4)
        _, plain = shown(grid(plan, 80), legend(plan))
        *_, line, said = plain.splitlines()
        assert line.split("  ")[-1].strip() == last
        assert "; h: query heads; " in said
    assert "heads" not in legend(rl.plan("ring", work, 4)).plain


def test_progress_is_seen_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen in (True, False):
        console = Console(file=io.StringIO(), force_terminal=seen, width=80)
        monkeypatch.setattr(output, "console", lambda console=console, **_: console)
        assert list(progress(["a", "b"], "counting")) == ["a", "b"]
        with working("thinking"):
            pass
        said = console.file.getvalue()
        assert all((f"counting {item}" in said) is seen for item in "ab")
        assert ("thinking" in said) is seen


def test_of_a_long_list_both_ends_are_shown() -> None:
    assert both_ends(list(range(SHOWN)), -1) == list(range(SHOWN))
    shown = both_ends(list(range(SHOWN + 1)), -1)
    assert shown == [*range(SHOWN // 2), -1, *range(SHOWN // 2 + 1, SHOWN + 1)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *(
            (0.0, "0 s"),
            (1234.4, "1234 s"),
            (0.9996, "1 s"),
            (0.9994, "999 ms"),
            (9.996e-4, "1 ms"),
        ),
        *((0.0123, "12.3 ms"), (7e-6, "7 us"), (4.5e-7, "450 ns"), (1.1e-12, "0.0011 ns")),
    ],
)
def test_durations_have_three_digits_and_no_powers(value: float, words: str) -> None:
    assert seconds(value) == words
