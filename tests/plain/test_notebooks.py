"""Notebooks show reprs of one line, tables as HTML, frames, pictures, and the examples."""

import json
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.figure import Figure
from run_notebooks import NOTEBOOKS, run

import ringloom as rl
from assertions import Assertions
from ringloom.planner.analysis.balance import loads
from ringloom.runtimes.audit import Case, Report
from ringloom.simulator.facts import traffic_of, usage
from ringloom.sweeps.run import Sweep
from strategies import any_workloads, masks, range_sets

WORK = rl.Workload(seq=4096, heads=8, kv_heads=2, head_dim=64)


@pytest.fixture(scope="module")
def compared() -> rl.Comparison:
    names = ["ring", "zigzag", "usp:ulysses=3:ring=2"]
    return rl.compare(WORK, 8, "h100", names, pass_="both", variants=False)


@pytest.fixture(scope="module")
def predicted() -> rl.Prediction:
    return rl.simulate(rl.plan("ring", WORK, 8, pass_="both"), "h100")


def axes() -> Any:
    return Figure().subplots()


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
TINY = rl.plan("ring", rl.Workload(seq=4, heads=1, head_dim=1), 2, pass_="both")
ARE_PYTHON = (  # what their reprs say builds them anew; of many entries these are long
    *(rl.Window(9), rl.Full(), rl.Global(4), rl.Causal() & rl.Window(9)),
    *(rl.Full() | rl.Global(4), rl.BlockCausal(64), rl.Chunks(64)),
    *(rl.Blocks(((True, False), (True, True)), 8), rl.Documents((3, 5)), rl.Keys(4), rl.Prefix(4)),
    *(
        rl.Slices(((0, 4, 0, 4, "causal"),)),
        rl.Tree((8, 4, 4), (None, 0, 0)),
        rl.Varlen((3, 5), (1, 2)),
    ),
    *(TINY.first.partition.q.blocks[0], TINY.first.steps[0], TINY.first.steps[0].attends[0]),
    *(
        TINY.first.steps[0].moves[0],
        rl.InitialCopy(("Q",), [[0]], [1]),
        WORK,
        rl.Scenario(late=True),
    ),
)
# Made of those, and as long as they are many; their reprs are Python too.
OF_MANY = rl.Partition, rl.Plan, rl.Side
ABSTRACT = rl.Mask, rl.PlanError, rl.RingloomError


def test_every_result_prints_in_a_line(compared: rl.Comparison, predicted: rl.Prediction) -> None:
    small = rl.Workload(seq=64, heads=4, head_dim=8, dtype="float64")
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 4, 64, 8))
    _, recording = rl.record(rl.plan("ring", small, 2), q, k, v, backend="numpy")
    one, planner = predicted.passes[0], rl.batch_planner(small, 2, "h100")
    results = [
        *(planner, planner((30, 34)), rl.Audit(Case(small, 2), Report(), "attend")),
        *(rl.search(small, 2, "h100", budget=1), rl.advise(LLAMA, 8, "h100", 8192)),
        *(compared, compared.cases[0], compared.rows[0], compared.recommendation),
        *(predicted, one, one.timeline, one.memory, predicted.bound, recording),
        *(rl.hardware("h100"), rl.topology("torus:2x4", rl.hardware("h100"), 8)),
        *(rl.plan("ring", WORK, 8, pass_="both"), rl.plan("ring", WORK, 64)),
        *(rl.check(rl.plan("ring", small, 4)), rl.Scenario(speeds={3: 0.5}), rl.Causal()),
        *(WORK, rl.Workload(seq=2**20, heads=64, kv_heads=8, mask="causal & window:4096")),
        rl.Workload(seq=2**20, heads=64, kv_heads=8, mask=rl.Documents((1024,) * 1024)),
        *(*rl.SCHEDULES.values(), Sweep([{"ranks": 4}] * 1000, ("ranks",), 1000, ())),
    ]
    public = {one for one in map(rl.__dict__.get, dir(rl)) if isinstance(one, type)}
    shown = {*map(type, results), *map(type, ARE_PYTHON), *OF_MANY, *ABSTRACT}
    assert public <= shown
    for value in ARE_PYTHON:
        assert eval(repr(value), vars(rl)) == value
        assert len(repr(value)) <= 120
    for result in results:
        assert "\n" not in repr(result)
        assert 10 <= len(repr(result)) <= 120 or repr(result) == "Causal()", result


floats = st.floats(0.01, 4)
scenarios = st.builds(
    rl.Scenario,
    overlap=st.booleans(),
    speeds=st.dictionaries(st.integers(0, 999), floats) | st.lists(floats),
    links=st.dictionaries(st.tuples(st.integers(0, 499), st.integers(500, 999)), floats),
    topology=st.sampled_from([None, "torus:2x4", "nodes:nics=4"]),
    buffers=st.sampled_from([None, 2, "plan"]),
    placement=st.none() | st.lists(st.integers(0, 99)),
    launch=st.none() | floats,
)


@given(
    st.one_of(
        *(masks(seq, seq, depth=3, ended=False) for seq in (33, 2**20)),
        *(any_workloads(), any_workloads(longest=2**20), scenarios),
        range_sets(2**20).map(lambda ranges: rl.Block(ascending(ranges), range(4), 0)),
    )
)
def test_whatever_is_drawn_prints_in_a_line_and_that_is_python_where_it_fits(value: Any) -> None:
    shown, built = repr(value), eval(value.python, vars(rl))
    assert built == value
    assert len(shown) <= 120
    assert "\n" not in shown
    head, _, tail = shown.partition(" ... ")
    cut = value.python.startswith(head.removeprefix("<")) and value.python.endswith(tail[:-1])
    assert cut if shown.startswith("<") else shown == value.python


@settings(max_examples=max(10, settings.default.max_examples // 4))
@given(any_workloads(longest=29), st.integers(1, 6), st.sampled_from(sorted(rl.SCHEDULES)))
def test_plans_and_what_is_said_of_them_print_in_a_line(
    work: rl.Workload, ranks: int, name: str
) -> None:
    try:
        plans = rl.plan(name, work, ranks, pass_="both")
    except rl.PlanError:
        assume(False)
    predicted = rl.simulate(plans, "h100")
    one = predicted.passes[0]
    compared = rl.compare(work, ranks, "h100", [name], variants=False)
    values = [plans, predicted, one, one.timeline, one.memory, one.bound, rl.check(plans)]
    values += [compared, *compared.cases, *compared.rows, compared.recommendation]
    values += [b for p in plans for side in (p.partition.q, p.partition.kv) for b in side.blocks]
    for value in values:
        assert "\n" not in repr(value)
        assert len(repr(value)) <= 120
    for part in (plans.forward, plans.forward.partition, *plans.forward.steps):
        assert repr(part).startswith(f"{type(part).__name__}(") or len(repr(part)) <= 120


def ascending(ranges: tuple[range, ...]) -> tuple[range, ...]:
    return tuple(one if one.step > 0 else one[::-1] for one in ranges)


def test_a_comparison_is_a_table_of_html_with_its_refusals(compared: rl.Comparison) -> None:
    html = compared._repr_html_()
    for row in compared.rows:
        assert f"<th>{row.schedule}</th>" in html
        assert f"<td>{row.speedup_vs_ring:.2f}x</td>" in html
    assert "usp:ulysses=3:ring=2" in html
    assert "cannot run" in html
    assert compared.recommendation.reason.partition(".")[0] in html
    assert "<th>makespan_s</th>" in rl.simulate(rl.plan("ring", WORK, 4), "h100")._repr_html_()


class Frames:
    """Stands in for a library of data frames."""

    DataFrame = list


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_hold_the_rows_of_json(
    library: str, compared: rl.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, Frames)
    frame = getattr(compared, f"to_{library}")()
    assert [row["schedule"] for row in frame] == [row["schedule"] for row in compared.as_rows()]
    assert frame[0]["makespan_s"] == compared.rows[0].makespan_s
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(rl.RingloomError, match=f"{library} is not installed: pip install"):
        getattr(compared, f"to_{library}")()


def test_pictures_draw_on_the_axes_they_are_given(
    compared: rl.Comparison, predicted: rl.Prediction
) -> None:
    for draw in (predicted.plot_timeline, predicted.plot_load, predicted.plot_memory):
        place = axes()
        assert draw(place) is place
        assert place.get_xlabel()
        assert place.get_ylabel()
    assert [bar.get_width() for bar in compared.plot(axes()).patches[:2]] == [
        1e3 * row.makespan_s for row in compared.rows
    ]


def test_a_legend_fits_beside_long_names_of_schedules() -> None:
    name = "allgather:layout=per-document:node=4"
    with matplotlib.rc_context({"backend": "agg"}):
        drawn = rl.compare(WORK, 8, "h100", ["ring", name], variants=False).plot()
        drawn.figure.draw_without_rendering()
        assert drawn.get_legend().get_window_extent().x1 <= drawn.figure.bbox.x1
        matplotlib.pyplot.close("all")


def test_pictures_show_what_was_predicted(predicted: rl.Prediction) -> None:
    plans = [one.timeline.plan for one in predicted.passes if one.timeline]
    work = np.sum([loads(plan).sum(axis=0) for plan in plans], axis=0)
    heights = [bar.get_height() for bar in predicted.plot_load(axes()).patches]
    np.testing.assert_allclose(heights, work / work.mean())
    (image,) = predicted.plot_traffic(axes()).images
    sent = np.nan_to_num(np.asarray(image.get_array().filled(0))) * 2**20
    np.testing.assert_allclose(sent, traffic_of(plans))
    used = usage(predicted)
    assert used is not None
    assert used.peak == predicted.peak_bytes
    assert predicted.plot_timeline(axes()).get_xlim()[1] == pytest.approx(1e3 * predicted.makespan)


def test_many_ranks_are_stood_for_by_the_busiest_the_idlest_and_some_between() -> None:
    result = rl.simulate(rl.plan("ring", WORK, 64), "h100")
    ranks = result.representatives()
    median = int(np.argsort(result.busy, kind="stable")[32])
    assert {int(result.busy.argmax()), int(result.busy.argmin()), median} <= set(ranks)
    assert set(range(0, 64, 8)) <= set(ranks)  # the first rank of each node
    assert len(ranks) <= 16
    drawn = result.plot_timeline(axes())
    assert [int(label.get_text()) for label in drawn.get_yticklabels()] == ranks
    assert f"{len(ranks)} of 64 ranks" in drawn.get_ylabel()
    assert len(result.plot_timeline(axes(), ranks=[3, 5]).get_yticklabels()) == 2


def test_there_are_two_notebooks() -> None:
    assert [page.stem for page in NOTEBOOKS] == ["idle_rings", "which_schedule"]


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_notebook_runs_and_holds_its_outputs(page: Path) -> None:
    """Mended by make notebooks."""
    stored = json.loads(page.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    assert page.stat().st_size < 100_000
    assertions: list[Assertions] = []

    def compiler(source: str, file: str, mode: str) -> Any:
        assertions.append(Assertions())
        scope.update(assertions[-1].names)
        return assertions[-1].compile(source, file, mode)

    scope: dict[str, Any] = {}
    fresh = run(stored, scope, compiler)
    assert all(one.loose == [] for one in assertions), "an assertion holds whatever the values are"
    for old, new in zip(code_cells(stored), code_cells(fresh), strict=True):
        assert without_pictures(old) == without_pictures(new)
        for drawn, redrawn in zip(pictures_of(old), pictures_of(new), strict=True):
            assert drawn.shape == redrawn.shape
            assert np.abs(drawn - redrawn).mean() < 0.01
    assert sum(len(pictures_of(cell)) for cell in code_cells(stored)) >= 3


def code_cells(document: dict[str, Any]) -> list[dict[str, Any]]:
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    return cells


def without_pictures(cell: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in cell["outputs"] if one["output_type"] != "display_data"]


def pictures_of(cell: dict[str, Any]) -> list[np.ndarray]:
    drawn = [
        one["data"]["image/png"] for one in cell["outputs"] if "image/png" in one.get("data", ())
    ]
    return [pyplot.imread(BytesIO(b64decode(data))) for data in drawn]
