"""The report: its facts are the simulator's and the planner's, its page needs nothing else."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib import import_module
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.models import Range1d
from hypothesis import given, settings
from hypothesis import strategies as st

import ringloom as rl
from command_line import CommandLine
from ringloom.comparison import Comparison, compare
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.files.digest import digest
from ringloom.report.facts.recorded import recorded
from ringloom.report.facts.tiles import tile_facts
from ringloom.report.page import page
from ringloom.report.pictures.stepper import columns, ink_on
from ringloom.report.pictures.timeline import TimelinePicture
from ringloom.simulator.chrome_trace import save_trace, trace
from ringloom.simulator.engines.choice import Engine
from ringloom.simulator.facts import bars_of, by_nodes, has_rows, traffic_of, usage, waits, work_of
from ringloom.simulator.hardware import hardware
from ringloom.simulator.timeline import spans
from ringloom.trials import Case
from strategies import masks, workloads

HARDWARE = hardware("a100-nvlink")
NAMES = ["ring", "striped", "zigzag", "balanced", "ulysses", "allgather"]
WORK = rl.Workload(seq=256, heads=8, kv_heads=8, head_dim=16, mask=rl.Causal())
SMALL = ["--ranks", "4", "--seq", "256", "--heads", "4", "--head-dim", "16"]


@pytest.fixture(scope="module")
def four() -> Comparison:
    return compare(WORK, 4, HARDWARE, NAMES, pass_="both", variants=False)


def ring(comparison: Comparison) -> Case:
    return next(case for case in comparison.cases if case.row.schedule == "ring")


@given(st.data())
@settings(max_examples=25)
def test_every_live_tile_has_the_rank_and_the_step_that_attend_it(data: st.DataObject) -> None:
    work = data.draw(workloads())
    name, ranks = data.draw(st.sampled_from([*NAMES[:4], "burst"])), data.draw(st.integers(1, 6))
    plan = rl.plan(name, work, ranks, pass_=data.draw(st.sampled_from(["forward", "backward"])))
    facts, slow = tile_facts(name, plan), {}
    for number, attend in plan.attends():
        for rank, q, kv in zip(attend.rank, attend.q, attend.kv, strict=True):
            for a in q[q >= 0]:
                for b in kv[kv >= 0]:
                    place = int(plan.partition.q.chunk[a]), int(plan.partition.kv.chunk[b])
                    if tiles(plan).areas[place]:
                        slow[place] = number, int(rank)
    assert len(facts.heads) == 1
    live = {tuple(map(int, place)) for place in np.argwhere(facts.step[0] >= 0)}
    assert live == {tuple(map(int, place)) for place in np.argwhere(facts.pairs > 0)} == set(slow)
    for place, (number, rank) in slow.items():
        assert (facts.step[0][place], facts.rank[0][place]) == (number, rank)
        assert facts.busy[number, rank]


@given(st.data())
@settings(max_examples=25)
def test_pixels_count_the_pairs_that_the_mask_allows(data: st.DataObject) -> None:
    seq = data.draw(st.integers(1, 40))
    work = rl.Workload(seq=seq, heads=2, head_dim=8, mask=data.draw(masks(seq, seq)))
    plan = rl.plan(data.draw(st.sampled_from(["ring", "striped", "zigzag"])), work, 3)
    facts, sides = tile_facts("", plan), (plan.partition.q, plan.partition.kv)
    (tall, wide), (qs, kvs) = (
        facts.pixels_per_piece,
        ([c for c in s.chunks if any(c)] for s in sides),
    )
    for i, q in enumerate(qs):
        for j, kv in enumerate(kvs):
            rows, cols = (np.concatenate([[*r] for r in c]).astype(int) for c in (q, kv))
            allowed = work.mask.allowed(np.sort(rows), np.sort(cols))
            here = facts.shares[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
            parts = [
                np.array_split(np.arange(n), m)
                for n, m in zip(allowed.shape, here.shape, strict=True)
            ]
            for a, one in enumerate(parts[0]):
                for b, two in enumerate(parts[1]):
                    block = allowed[np.ix_(one, two)]
                    assert here[a, b] == pytest.approx(block.mean() if block.size else 0.0)


def test_heads_that_are_cut_have_tables_of_their_own() -> None:
    facts = tile_facts("ulysses", rl.plan("ulysses", WORK, 4))
    assert (facts.heads, facts.note) == (("0-1", "2-3", "4-5", "6-7"), "")
    ranks = [{int(r) for r in table[table >= 0]} for table in facts.rank]
    assert ranks == [{0}, {1}, {2}, {3}]


def test_head_slices_beyond_those_drawn_are_told() -> None:
    work = replace(WORK, heads=20, kv_heads=20)
    facts = tile_facts("ulysses", rl.plan("ulysses", work, 20))
    assert (len(facts.heads), len(facts.step), len(columns([facts])["heads"][0])) == (20, 16, 16)
    assert facts.note == "The first 16 of 20 head slices are shown."
    assert (facts.rank[15] >= 0).any()
    assert facts.note in page(compare(work, 20, HARDWARE, ["ulysses"]))


def test_bars_are_the_spans_of_the_simulator(four: Comparison) -> None:
    for case in four.cases:
        bars, offset, slow = bars_of(case.prediction), 0.0, []
        for one in case.prediction.passes:
            slow += [
                (s.rank, s.step, s.name, s.start + offset, s.end + offset)
                for s in [*spans(one.timeline), *waits(one.timeline)]
                if s.stream != "receive"
            ]
            offset += one.makespan
        assert [(s.rank, s.step, s.name, s.start, s.end) for s in bars] == slow
        assert has_rows(case.prediction)
        assert max(s.end for s in bars) <= case.row.makespan_s * (1 + 1e-12)


def test_too_many_rows_become_the_attends_of_steps() -> None:
    case = compare(WORK, 4, HARDWARE, ["ring"]).cases[0]
    timeline = case.prediction.timeline
    object.__setattr__(timeline, "rows", None)
    bars = bars_of(case.prediction)
    assert not has_rows(case.prediction)
    attends = sum(s.stream == "compute" for s in bars)
    assert attends == sum(len(set(a.rank.tolist())) for _, a in timeline.plan.attends())
    waited = timeline.steps[1] - timeline.begin
    shown = np.array([s.end - s.start for s in bars if s.stream == "wait"])
    assert shown.sum() == waited.sum()


@pytest.mark.parametrize("engine", ["recurrence", "events"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("name", ["ring", "zigzag", "balanced", "ulysses", "tree", "allgather"])
def test_waits_lie_where_a_rank_is_idle_and_add_up_to_what_is_exposed(
    name: str, pass_: str, overlap: bool, engine: Engine
) -> None:
    plan = rl.plan(name, rl.Workload(seq=2**14, heads=8), 8, pass_=pass_)
    result = rl.simulate(plan, "a100-pcie", overlap=overlap, engine=engine)
    bars, waited = bars_of(result), np.zeros(8)
    for s in bars:
        waited[s.rank] += s.end - s.start if s.stream == "wait" else 0
    assert 0 < waited.max() == pytest.approx(result.exposed)
    for rank in range(8):
        own = [s for s in bars if s.rank == rank and s.stream != "send"]
        own.sort(key=attrgetter("start"))
        assert all(after.start >= s.end - 1e-12 for s, after in pairwise(own))


@pytest.mark.parametrize("node", [8, 256, 4096])
@pytest.mark.parametrize("ranks", [8, 64, 1024])
def test_large_tables_are_summed_over_nodes_unless_few_are_left(ranks: int, node: int) -> None:
    table = np.arange(ranks * ranks).reshape(ranks, ranks)
    small, cell = by_nodes(table, node)
    assert (cell, len(small)) == ((1, ranks) if ranks <= 128 else (8, 128))
    assert small.sum() == table.sum()
    assert small[1, 2] == table[cell : 2 * cell, 2 * cell : 3 * cell].sum()


def test_loads_links_and_memory_add_up_to_what_was_predicted(four: Comparison) -> None:
    for case in four.cases:
        plans = [*case.plans]
        assert work_of(plans).sum() == sum(tiles(plan).total_pairs() for plan in plans)
        out = traffic_of(plans).sum(axis=1)
        assert out.tolist() == case.prediction.bytes_sent.tolist()
        held = usage(case.prediction)
        assert held is not None
        assert held.peak == case.row.peak_bytes


def test_the_words_of_a_step_count_what_happens_in_it(four: Comparison) -> None:
    plan = ring(four).plans.first
    facts = tile_facts("ring", plan)
    assert facts.words(0) == "step 1 of 4: 4 of 4 ranks attend 4 tiles; KV: 3 transfers, 96 KiB"
    assert facts.words(3) == "step 4 of 4: 1 of 4 ranks attends 1 tile; no transfers"
    assert columns([facts])["bytes"][0].sum() == rl.simulate(plan, HARDWARE).bytes_sent.sum()


def cells(html: str) -> dict[tuple[str, str], tuple[float, str]]:
    """(schedule, field) -> (number, words) of every cell of the table."""
    values = {}
    for name, body in re.findall(r'<tbody[^>]*data-schedule="([^"]*)">(.*?)</tbody>', html, re.S):
        cell = r'data-field="(\w+)" data-value="([^"]*)">([^<]*)<'
        for field, value, text in re.findall(cell, body):
            values[unescape(name), field] = float(value), unescape(text)
    return values


@pytest.fixture(scope="module")
def html(four: Comparison) -> str:
    """The page of four ranks, where bokeh was taught to load things from a network."""
    import_module("panel")
    return page(four)


def test_every_number_of_the_table_is_the_simulators(four: Comparison, html: str) -> None:
    table = cells(html)
    rows = compare(WORK, 4, HARDWARE, NAMES, pass_="both").rows
    assert len(table) == 7 * len(NAMES)
    of = {row.schedule: row for row in rows}
    assert all(number == getattr(of[name], field) for (name, field), (number, _) in table.items())
    numbers = re.search(r'id="numbers">(.*?)</script>', html, re.S)
    assert numbers is not None
    assert json.loads(numbers[1])["rows"] == [row.as_dict() for row in rows]
    assert unescape(re.search(r'id="finding">(.*?)</p>', html, re.S)[1]) == four.why
    assert f"<h1>{four.recommendation.answer}</h1>" in html


def test_a_page_needs_no_network(html: str) -> None:
    assert len(html) < 4 << 20
    scripts = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", scripts)
    assert not re.findall(r"<(?:link|iframe|img|base)\b", scripts)
    assert not re.findall(r"<script[^>]+\bsrc\s*=", html)


def test_words_from_files_stay_words(four: Comparison, tmp_path: Path) -> None:
    run = recorded(rewritten(four, tmp_path, lambda d: d["otherData"].update(hardware="<b>evil")))
    html = page(compare(WORK, 4, HARDWARE, ["ring"]), run)
    assert ("<b>evil" in html, "&lt;b&gt;evil" in html) == (False, True)


def rewritten(
    comparison: Comparison, folder: Path, change: Callable[[dict[str, Any]], Any]
) -> Path:
    """The trace of the ring's forward pass, changed."""
    (first, _), *_ = ring(comparison).prediction.in_turn()
    document = trace(first)
    change(document)
    return save_trace(document, folder / "run.json.gz")


def test_a_recorded_run_reads_back_as_what_was_written(four: Comparison, tmp_path: Path) -> None:
    run = recorded(rewritten(four, tmp_path, lambda _: None))
    plan, prediction = ring(four).plans.first, ring(four).prediction.passes[0]
    assert (run.plan, run.ranks) == (plan.name, 4)
    assert run.makespan == pytest.approx(prediction.makespan, abs=2e-9)
    slow = [s for s in spans(prediction.timeline) if s.stream != "receive"]
    ours, theirs = (sorted((s.rank, s.step, s.start) for s in one) for one in (run.bars, slow))
    for own, other in zip(ours, theirs, strict=True):
        assert own == pytest.approx(other, abs=2e-9)


def test_a_run_is_drawn_below_its_prediction(four: Comparison, tmp_path: Path) -> None:
    run = recorded(rewritten(four, tmp_path, lambda _: None))
    html = page(compare(WORK, 4, HARDWARE, ["ring", "zigzag"]), run)
    assert "1.00x the" in html
    assert re.search(r"time axis\. A recorded run of .* is drawn below its prediction", html)
    picture, bars = TimelinePicture("timeline", Range1d(0, 1)), bars_of(ring(four).prediction)
    assert not picture.figure.xaxis[0].formatter.use_scientific  # 0.007 ms, not 7.000e-3 ms
    picture.show(bars, 4, range(4), run)
    names = picture.source.data["name"]
    assert len(picture.source.data["left"]) == len(names) == len(bars) + len(run.bars)
    assert sum(name.startswith("predicted: ") for name in names) == len(bars)


def test_a_far_slower_run_is_drawn_on_its_own_scale_and_says_so(
    four: Comparison, tmp_path: Path
) -> None:
    slower = rewritten(four, tmp_path, lambda d: d["otherData"].update(time_scale=1e-3))
    run, one = recorded(slower), compare(WORK, 4, HARDWARE, ["ring"])
    html = page(one, run)
    assert re.search(r"(999|1000)\.\d\dx the", html)
    assert "Its time axis is scaled by 0.001" in html
    picture = TimelinePicture("timeline", Range1d(0, 1))
    picture.show(bars_of(ring(one).prediction), 4, range(4), run, 1e-3)
    data = picture.source.data
    own = np.array([name.startswith("measured: ") for name in data["name"]])
    assert data["right"][own].max() == pytest.approx(1e3 * one.rows[0].makespan_s, rel=1e-3)
    assert data["since"][own].max() > 500 * data["left"][own].max() > 0


BAD = [
    (lambda d: d.pop("traceEvents"), "not a trace of a run"),
    (lambda d: d.update(traceEvents=[1, {}, None]), "contains no slices"),
    (lambda d: d["otherData"].pop("digest"), "has an old format, without a digest"),
    (lambda d: d["otherData"].update(time_scale=0), "time_scale"),
    (lambda d: d["otherData"].update(time_scale="fast"), "time_scale"),
    (lambda d: [e.update(ts=10**400) for e in d["traceEvents"]], "the start 1000.* is not between"),
    (
        lambda d: d["otherData"].update(hardware="\x1b[31m"),
        "hardware must be one line of printable text",
    ),
    (
        lambda d: [e.update(pid=-1) for e in d["traceEvents"]],
        "the rank -1 is less than 0",
    ),
    (lambda d: [e.update(tid=-1) for e in d["traceEvents"]], "the thread -1 is less than 0"),
    (lambda d: [e.update(dur=None) for e in d["traceEvents"]], "the duration None is not a number"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words for _, words in BAD])
def test_what_is_no_recording_is_refused(
    four: Comparison, tmp_path: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    with pytest.raises(rl.RingloomError, match=words):
        recorded(rewritten(four, tmp_path, change))


def test_runs_of_something_else_are_refused(four: Comparison, tmp_path: Path) -> None:
    run = recorded(rewritten(four, tmp_path, lambda _: None))
    for schedule, ranks in (("zigzag", 4), ("ring", 2)):
        said = rf"has other plans: ring on 4 ranks, .*; the report has {schedule} on {ranks} ranks"
        with pytest.raises(rl.RingloomError, match=said):
            page(compare(WORK, ranks, HARDWARE, [schedule]), run)


OTHERS = [
    ({"seq": 512, "kv_seq": 512}, r"seq=256, .*; the report .* forward of Workload\(seq=512, "),
    ({"head_dim": 32}, r"the report .*head_dim=32"),
    ({"dtype": "float32"}, r"the report .*dtype='float32'"),
    ({"mask": rl.Full()}, r"the report .*mask=Full\(\)\)"),
]


@pytest.mark.parametrize(("change", "words"), OTHERS, ids=[str(change) for change, _ in OTHERS])
def test_runs_of_another_workload_are_refused_with_both(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    work = replace(WORK, kv_heads=1)
    run = recorded(rewritten(compare(work, 4, HARDWARE, ["ring"]), tmp_path, lambda _: None))
    page(compare(work, 4, HARDWARE, ["ring"]), run)
    with pytest.raises(rl.RingloomError, match=words):
        page(compare(replace(work, **change), 4, HARDWARE, ["ring"]), run)


def test_a_run_of_one_pass_is_not_laid_over_two(four: Comparison, tmp_path: Path) -> None:
    run = recorded(rewritten(four, tmp_path, lambda _: None))
    with pytest.raises(
        rl.RingloomError, match=r"ranks, forward of .* ranks, forward and backward of"
    ):
        page(four, run)


def test_the_command_writes_the_page(tmp_path: Path, ringloom: CommandLine) -> None:
    target = tmp_path / "report.html"
    given = "--schedules ring,zigzag --no-overlap --straggler 3=0.5 --straggler 1=0.7"
    given += " --slow-link 0-1=0.5 --placement 1,0,2,3 --recv-buffers plan"
    printed = ringloom.json("report", *SMALL, *given.split(), "-o", str(target))
    content = unescape(target.read_text())
    assert printed["finding"] in content
    words = " ".join(["ringloom report", *SMALL, given])
    assert f"<code>{words}</code>" in re.sub("</?span[^>]*>", "", content)
    for name in ("ring", "zigzag"):
        plans = rl.Plans.of(rl.plan(name, rl.Workload(seq=256, heads=4, head_dim=16), 4))
        assert f"{name} <code>{digest(plans)}</code>" in content
    assert {row["schedule"] for row in printed["rows"]} == {"ring", "zigzag"}
    for bad in (["--schedules", ","], ["-o", "/nowhere/r.html"], ["--run", "/nowhere.json"]):
        ringloom.refused("report", *SMALL, *bad)


def test_ink_can_be_read_on_every_colour() -> None:
    assert [ink_on(c) for c in ("#000000", "#0072B2", "#E69F00", "#ffffff")] == [
        *("#ffffff", "#ffffff"),
        *("#000000", "#000000"),
    ]


def test_the_finding_fits_what_is_compared() -> None:
    def finding(work: rl.Workload, ranks: int, *names: str) -> str:
        return compare(work, ranks, HARDWARE, names).why

    long = rl.Workload(seq=1 << 18, heads=32)
    assert finding(long, 4, "ring", "zigzag").startswith("ring takes 1.")
    assert finding(WORK, 4, "ring").startswith("ring takes ")
    assert "x the lower bound of " in finding(WORK, 4, "ring")
    assert finding(WORK, 1, "ring", "ulysses").startswith("All schedules take the same time, ")
    empty = rl.Workload(seq=256, heads=8, mask=rl.Window(0, 0) & rl.Global(0))
    assert finding(empty, 4, "ring", "zigzag") == (
        "The mask allows no query-key pair: there is nothing to compute."
    )


def test_a_page_of_nothing_and_a_page_of_many_ranks_are_pages_too() -> None:
    empty = rl.Workload(seq=256, heads=8, mask=rl.Window(0, 0) & rl.Global(0))
    alone = page(compare(empty, 4, HARDWARE, ["ring"], variants=False))
    assert "nothing to compute" in alone
    assert 'class="badge"' not in alone  # of one
    assert 'class="badge">tied<' in page(compare(WORK, 4, HARDWARE, ["zigzag", "burst"]))
    html = page(compare(WORK, 100, HARDWARE, ["balanced"]))
    assert "the busiest, the least busy, the median and the first rank of" in html
