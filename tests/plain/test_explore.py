"""The local page without a browser: its pictures' facts, its files, its server."""

import ast
import json
import re
import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from time import sleep
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import panel
import pytest

import ringloom as rl
from command_line import CommandLine
from ringloom.cli.explore.explore import free_port, serve
from ringloom.comparison import compare
from ringloom.explore import session as sessions
from ringloom.explore.choices import Choices, from_query
from ringloom.explore.controls import plan_file, program, trace_file
from ringloom.explore.view import View, compare_with_ring, finding, other_schedules, predict
from ringloom.planner.files import loads
from ringloom.report.facts.tiles import tile_facts
from ringloom.simulator.facts import bars_of, traffic_of, usage, work_of
from ringloom.simulator.hardware import hardware

SMALL = Choices(schedule="zigzag", ranks=4, seq="4k", heads=4, kv_heads=2, pass_="both")


def test_the_numbers_are_those_of_compare() -> None:
    work = rl.Workload(seq=4096, heads=4, kv_heads=2, head_dim=128, mask=rl.Causal())
    rows = compare(work, 4, hardware("a100-nvlink"), ["zigzag", "ring"], pass_="both")
    assert compare_with_ring(SMALL).rows == rows.rows


def test_the_finding_says_first_where_memory_lacks() -> None:
    large = replace(SMALL, seq="4M", heads=32, kv_heads=32, hardware="a100-pcie")
    said = finding(large, compare_with_ring(large))
    assert re.match(r"zigzag needs [\d.]+ GiB per rank, more than the 74.5 GiB available\. r", said)
    assert finding(SMALL, compare_with_ring(SMALL)) == compare_with_ring(SMALL).why


def show(view: View, choices: Choices) -> None:
    view.show_plan(choices)
    view.show_times(choices)


def test_pictures_hold_the_facts_of_what_was_chosen_last() -> None:
    view = View()
    for choices in (SMALL, replace(SMALL, schedule="balanced", ranks=5, pass_="forward")):
        show(view, choices)
        case = compare_with_ring(choices).cases[0]
        plans = case.plans
        bars, held = bars_of(case.prediction), usage(case.prediction)
        assert held is not None
        ends = [bar.end * 1e3 for bar in bars]
        np.testing.assert_array_equal(view.timeline.source.data["right"], ends)
        np.testing.assert_array_equal(view.load.source.data["pairs"], work_of(plans))
        (image,) = view.links.source.data["image"]
        np.testing.assert_array_equal(np.nan_to_num(image), traffic_of(plans))
        np.testing.assert_array_equal(view.memory.sources[0].data["y"], held.bytes)
        assert view.links.figure.right[0].ticker.min_interval == 1  # of bytes there are no parts
        assert len(view.stepper.facts.data["words"]) == len(plans)
        assert len(view.stepper.colours.palette) == choices.ranks
        end = 1e3 * compare_with_ring(choices).cases[0].row.makespan_s
        assert (view.axis.start, view.axis.end) == (0, end)


def test_what_cannot_be_drawn_changes_nothing() -> None:
    view = View()
    show(view, SMALL)
    before = view.timeline.source.data["right"].copy()
    with pytest.raises(rl.PlanError):
        show(view, replace(SMALL, schedule="usp:ulysses=3:ring=2"))
    np.testing.assert_array_equal(view.timeline.source.data["right"], before)


def test_files_are_those_of_the_commands() -> None:
    work = SMALL.work
    assert loads(plan_file(SMALL)) == rl.plan("zigzag", work, 4, pass_="both")
    assert json.loads(trace_file(SMALL))["otherData"]["plan"] == "zigzag"
    source = program(replace(SMALL, pass_="forward"), "torch")
    assert source == rl.emit(rl.plan("zigzag", work, 4, pass_="both"), "torch")
    assert {"attention"} <= {getattr(n, "name", "") for n in ast.parse(source).body}


def test_files_are_named_after_the_schedule_and_refusals_are_told(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened({"schedule": [b"usp:ulysses=2"], "ranks": [b"4"], "seq": [b"4k"]})
    session.request.data = {"name": ["plan"], "at": [1.0]}
    assert session.file.data == {
        "name": ["usp-ulysses2-plan.json"],
        "text": [plan_file(session.shown)],
    }

    def refuses(_: Choices) -> str:
        raise rl.PlanError("<b>")

    monkeypatch.setitem(sessions.FILES, "plan", ("plan.json", refuses))
    session.request.data = {"name": ["plan"], "at": [2.0]}
    assert "no plan: &lt;b&gt;" in session.words["trouble"]


class Later:
    """A document that calls back when it is told to."""

    def __init__(self) -> None:
        self.waiting = list[Callable[[], None]]()
        self.session_context = SimpleNamespace(session=SimpleNamespace(connection_count=1))

    def add_timeout_callback(self, call: Callable[[], None], milliseconds: int) -> None:
        assert milliseconds <= 100
        self.waiting.append(call)

    def wait(self, done: Callable[[], Any]) -> None:
        """Do what waits until something is true."""
        for _ in range(2000):
            if done():
                return
            self.go_on()
            sleep(0.005)
        raise AssertionError("waited in vain")

    def go_on(self, times: int = 1) -> None:
        """Do what waits, and not what is then to wait."""
        for _ in range(times):
            waiting, self.waiting = self.waiting, []
            for call in waiting:
                call()


DRAWN = 4  # turns after which the pictures of other choices are drawn


def choose(session: sessions.Session, name: str, value: Any) -> None:
    """Change a control, and wait for the answer."""
    session.entries.data = session.entries.data | {name: [value]}
    sessions.pn.state.curdoc.go_on(DRAWN)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[bytes]]], Any]:
    def open_(arguments: dict[str, list[bytes]]) -> sessions.Session:
        about = {"session_args": arguments, "location": None, "curdoc": Later()}
        state = type("State", (), {**about, "onload": staticmethod(lambda begin: begin())})
        monkeypatch.setattr(sessions.pn, "state", state)
        return sessions.Session()

    return open_


def test_a_session_follows_its_controls(opened: Callable[..., Any]) -> None:
    session = opened({"schedule": [b"zigzag"], "ranks": [b"4"], "seq": [b"4k"]})
    assert session.words["trouble"] == ""
    facts = session.view.stepper.facts
    assert facts.data["words"][0][0].startswith("step 1 of 4: 4 of 4 ranks attend")
    choose(session, "schedule", "ulysses")
    assert "ulysses" in session.words["summary"]
    assert facts.data["title"] == ["ulysses forward"]
    assert len(facts.data["words"][0]) == len(rl.plan("ulysses", session.shown.work, 4).steps)


def test_what_is_wrong_is_told_at_its_entry(opened: Callable[..., Any]) -> None:
    session = opened({"ranks": [b"4"], "seq": [b"4k"]})
    told, entries = session.words, json.loads(session.words["shown"])
    for name, entry, words in (
        ("mask", "documents:1", "documents"),
        ("ranks", "<b>", "ranks must be an integer, not &#x27;&lt;b&gt;&#x27;"),
        ("kv_heads", "5", "32 query heads cannot share 5 KV heads evenly"),
        ("stragglers", "9=0.5", "no rank 9 to slow down"),
        ("share", "1", "a share of the chip below 1"),
    ):
        usual = session.texts[name]
        choose(session, name, entry)
        assert words in told[f"wrong-{name}"]
        others = [told[f"wrong-{n}"] for n in session.texts if n != name]
        assert set(others) == {""}
        assert json.loads(told["shown"]) == entries  # the page holds these against its controls
        assert session.texts != entries
        choose(session, name, usual)
        assert told[f"wrong-{name}"] == ""


def test_nothing_belongs_to_what_is_half_drawn(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened({"ranks": [b"4"], "seq": [b"4k"]})
    monkeypatch.setattr(View, "show_times", lambda *_: panel.no_such_name)
    with pytest.raises(AttributeError):
        choose(session, "seq", "8k")
    assert session.words["shown"] == ""


def test_the_table_is_filled_row_by_row_until_the_next_change(opened: Callable[..., Any]) -> None:
    session = opened({"ranks": [b"4"], "seq": [b"4k"], "heads": [b"4"], "schedule": [b"zigzag"]})
    words, later, names = session.words, sessions.pn.state.curdoc, other_schedules(session.shown)
    assert words["progress"].endswith(f" 0 of {len(names)} other schedules compared")
    later.wait(lambda: words["progress"].endswith(f" 1 of {len(names)} other schedules compared"))
    assert words["summary"].count("<tbody") == 3
    assert "fastest" not in words["summary"]
    choose(session, "seq", "8k")
    assert words["summary"].count("<tbody") == 2
    later.wait(lambda: not later.waiting)
    assert words["progress"] == ""
    work = rl.Workload(seq=8192, heads=4)
    whole = compare(work, 4, hardware("a100-nvlink"), variants=False)
    told = re.findall(r'data-field="makespan_s" data-value="(.+?)"', words["summary"])
    assert list(map(float, told)) == [row.makespan_s for row in whole.rows]
    assert words["summary"].count("cannot run") == len(whole.refused)
    assert words["summary"].count("fastest") == told.count(told[0])


def test_of_a_burst_of_changes_only_the_last_is_drawn(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, drawn = opened({"ranks": [b"4"], "seq": [b"4k"]}), list[str]()
    show_plan = View.show_plan
    monkeypatch.setattr(
        View, "show_plan", lambda view, one: (drawn.append(one.seq), show_plan(view, one))[1]
    )
    for seq in ("8k", "16k", "32k"):
        session.entries.data = session.entries.data | {"seq": [seq]}
    sessions.pn.state.curdoc.go_on(DRAWN)
    assert (drawn, session.shown.seq) == (["32k"], "32k")
    session.entries.data = session.entries.data | {"seq": ["64k"]}
    sessions.pn.state.curdoc.go_on(DRAWN - 1)
    session.entries.data = session.entries.data | {"seq": ["0"]}
    sessions.pn.state.curdoc.go_on(DRAWN)
    assert (drawn, session.shown.seq, session.words["shown"]) == (["32k", "64k"], "32k", "")


def test_an_address_of_many_ranks_opens_at_once_and_says_what_is_done(
    opened: Callable[..., Any],
) -> None:
    session, later = opened({"ranks": [b"256"], "seq": [b"64k"]}), sessions.pn.state.curdoc
    assert session.shown == Choices()
    assert json.loads(session.words["shown"]) != session.texts
    later.go_on()
    assert session.words["working"] == "planning ring on 256 ranks ..."
    later.go_on()
    assert session.words["working"] == "predicting ring on 256 ranks ..."
    later.go_on(DRAWN - 2)
    assert (session.words["working"], session.shown.ranks) == ("", 256)
    assert json.loads(session.words["shown"]) == session.texts


def test_too_many_tiles_are_told_and_all_else_is_drawn(opened: Callable[..., Any]) -> None:
    session = opened({"ranks": [b"4"], "seq": [b"4k"]})
    choose(session, "ranks", "800")
    assert session.words["skipped"] == "Too many tiles to draw step by step: ring forward."
    assert len(session.view.load.source.data["rank"]) == 800
    assert session.shown.ranks == 800
    choose(session, "ranks", "8")
    assert session.words["skipped"] == ""


def test_copies_say_what_is_shown(ringloom: CommandLine) -> None:
    links = {"stragglers": "1=0.5 2=0.25", "slow_links": "1-2=0.5"}
    for choices in (
        replace(SMALL, v_head_dim=64, sinks=True, mask="causal & window:100", **links),
        replace(SMALL, overlap=False, pass_="forward", share="0.1"),
        replace(SMALL, seq="3", kv_seq="8k"),
        replace(SMALL, share="0.25", topology="torus:2x2", placement="1,0,3,2"),
        replace(SMALL, share="0", buffers="plan", launch="1e-3"),
    ):
        row = predict(choices).row
        rows = ringloom.json(*shlex.split(choices.command)[1:])["rows"]
        assert {r["schedule"]: r["makespan_s"] for r in rows}["zigzag"] == row.makespan_s
        scope = dict[str, Any]()
        exec(choices.python, scope)
        assert scope["result"].makespan == row.makespan_s


def test_a_share_of_nothing_is_not_the_hardwares() -> None:
    usual, none = (predict(replace(SMALL, share=share)).row for share in ("", "0"))
    assert none.makespan_s < usual.makespan_s


def test_a_bad_address_is_told_in_words(opened: Callable[..., Any]) -> None:
    session = opened(
        {
            "mask": [(evil := "<script>alert(1)</script>").encode()],
            "heads": [b"8"],
            "pass": [b"\xff"],
        }
    )
    assert "&lt;script&gt;" in session.words["wrong-mask"]
    assert "<script>" not in session.words["wrong-mask"]
    assert session.shown == Choices()
    assert session.texts == Choices().texts() | {
        "mask": evil,
        "heads": "8",
        "kv_heads": "8",
        "pass": "\ufffd",
    }


def test_the_server_listens_on_this_machine_only() -> None:
    server = serve(panel, sessions, free_port(0))
    try:
        addresses = {s.getsockname()[0] for s in server._http._sockets.values()}
        assert addresses == {"127.0.0.1"}
        origins = server._tornado.websocket_origins
        assert origins == {f"127.0.0.1:{server.port}", f"localhost:{server.port}"}
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        ("", Choices()),
        ("zigzag --ranks 4 --seq 4k --heads 4 --kv-heads 2 --pass both", SMALL),
        (
            "--heads 8 --mask window:40 --sinks",
            Choices(heads=8, kv_heads=8, mask="window:40", sinks=True),
        ),
        ("tree --seq 1 --kv-seq 1M", Choices("tree", seq="1", kv_seq="1M")),
        (
            "usp:ulysses=2 --no-overlap --straggler 3=0.5",
            Choices("usp:ulysses=2", overlap=False, stragglers="3=0.5"),
        ),
    ],
)
def test_the_page_begins_with_what_the_options_say(
    ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch, words: str, begun: Choices
) -> None:
    ended = SimpleNamespace(port=1, io_loop=SimpleNamespace(start=lambda: None))
    monkeypatch.setattr("ringloom.cli.explore.explore.serve", lambda *_: ended)
    address = urlsplit(ringloom.json("explore", *words.split())["url"])
    assert from_query(dict(parse_qsl(address.query))) == begun


def test_a_port_that_is_taken_is_told(ringloom: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "use --port 0 to choose a free port" in ringloom.refused(
            "explore", "--port", str(taken.getsockname()[1])
        )


def test_pieces_of_no_token_are_not_drawn() -> None:
    facts = tile_facts("tree", rl.plan("tree", rl.Workload(seq=1, kv_seq=64), 8))
    assert facts.step.shape == facts.rank.shape == (1, 1, 8)
    assert (facts.pairs > 0).all()
    assert (facts.shares > 0).all()
    assert [*map(len, facts.names)] == [1, 8]
