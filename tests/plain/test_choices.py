"""The choices of the local page: addresses, scenarios, and the command that begins with them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from command_line import CommandLine
from ringloom.comparison import PASSES
from ringloom.explore.choices import (
    CHECKS,
    MOST_RANKS,
    ChoiceError,
    Choices,
    from_query,
    from_scenario,
)
from ringloom.planner.schedules import SCHEDULES
from ringloom.simulator.hardware import presets
from ringloom.simulator.scenario import Scenario

chosen = st.builds(
    Choices,
    schedule=st.sampled_from([*SCHEDULES, "usp:ulysses=2:ring=4", "striped:grain=4"]),
    ranks=st.integers(1, MOST_RANKS),
    seq=st.sampled_from(["1", "203", "256k", "1M"]),
    mask=st.sampled_from(["causal", "full", "causal & (window:4096 | global:64)"]),
    heads=st.integers(1, 64),
    kv_heads=st.just(1),
    head_dim=st.integers(1, 256),
    v_head_dim=st.integers(1, 256),
    sinks=st.booleans(),
    hardware=st.sampled_from(presets()),
    pass_=st.sampled_from(PASSES),
    overlap=st.booleans(),
    stragglers=st.sampled_from(["", "0=0.5", "0=0.5,"]),
    topology=st.sampled_from(["", "nodes", "switch"]),
    buffers=st.sampled_from(["", "2", "plan"]),
    share=st.just("") | st.floats(0, 0.9).map(str),
    launch=st.just("") | st.floats(0, 1).map(str),
) | st.builds(
    Choices,
    ranks=st.just(4),
    slow_links=st.sampled_from(["", "0-1=0.5", "0-1=cut"]),
    topology=st.sampled_from(["", "torus:2x2"]),
    placement=st.sampled_from(["", "0,1,3,2", "0 1 3 2"]),
)


@given(chosen)
def test_an_address_brings_its_choices_back(choices: Choices) -> None:
    assert from_query(choices.query()) == choices


@given(chosen)
def test_choices_and_their_scenario_are_the_same(choices: Choices) -> None:
    about = {"ranks": str(choices.ranks), "hardware": choices.hardware}
    assert from_scenario(choices.scenario, **about).scenario == choices.scenario


def test_the_shortest_address_says_the_usual() -> None:
    assert Choices().query() == {}
    assert CHECKS.keys() == Choices().texts().keys()
    assert from_query({"heads": "8"}) == replace(Choices(), heads=8, kv_heads=8)
    assert from_query({"somebody": "else's"}) == Choices()


BAD = [
    ({"schedule": "spiral"}, "unknown schedule"),
    ({"ranks": "0"}, "ranks must be 1 to 1024, not 0"),
    ({"ranks": "1025"}, "ranks must be 1 to 1024, not 1025"),
    ({"ranks": "-4"}, "ranks must be an integer"),
    ({"ranks": "9" * 40}, "ranks must be an integer"),
    ({"seq": "999M"}, "tokens must be 1 to 16777216, not 999M"),
    ({"seq": "long"}, "not a number of tokens"),
    ({"mask": "documents@/etc/passwd"}, "must not name files"),
    ({"mask": 'blocks@"x"'}, "must not name files"),
    ({"hardware": "/etc/passwd"}, "must not name files"),
    ({"hardware": "abacus"}, "unknown hardware"),
    ({"pass": "sideways"}, "unknown pass 'sideways': choose one of forward, backward, both"),
    ({"kv_heads": "5"}, "32 query heads cannot share 5 KV heads evenly"),
    ({"mask": "documents:1", "seq": "2"}, "documents"),
    ({"mask": "x" * 201}, "mask must have at most 200 characters, not 201"),
    ({"stragglers": "3"}, "speeds must be like 3=0.5, 6=0.8, not '3'"),
    ({"stragglers": "9=0.5"}, "no rank 9 to slow down"),
    ({"stragglers": "3=0.5, 03=0.25"}, "'3=0.5, 03=0.25' names a rank or a link twice"),
    ({"topology": "ring", "slow_links": "0-1=0.5 1-0=0.5"}, "link 0-1 is named twice"),
    ({"slow_links": "3-9=0.5"}, "9"),
    ({"topology": "/etc/passwd"}, "must not name files"),
    ({"topology": "Makefile"}, "unknown topology 'Makefile': choose "),
    ({"topology": "torus:3x3"}, "9 ranks, the plan has 8"),
    ({"topology": "torus:99999x99999"}, "torus:99999x99999 has 9999800001 ranks, the plan has 8"),
    ({"topology": "torus:wide"}, "neither a file nor one of"),
    ({"topology": "ring", "slow_links": "0-4=0.5"}, "4"),
    ({"share": "1"}, "a share of the chip below 1, not 1"),
    ({"share": "much"}, "share must be a number, not 'much'"),
    ({"launch": "-1"}, "a launch takes 0 seconds or more, not -1"),
    ({"launch": "soon"}, "launch must be a number, not 'soon'"),
    ({"buffers": "0"}, "buffers must be a whole number from 1 up, or plan, not 0"),
    ({"buffers": "all"}, "or plan, not 'all'"),
    ({"placement": "0,1"}, "each of the 8 ranks a place: 8 numbers, not 2"),
    ({"placement": "first"}, "placement must be like 0,2,1,3, not 'first'"),
    ({"overlap": "maybe"}, "on or off"),
]


@pytest.mark.parametrize(("query", "words"), BAD, ids=[str(query)[:40] for query, _ in BAD])
def test_addresses_that_make_no_sense_are_refused(query: dict[str, str], words: str) -> None:
    with pytest.raises(rl.RingloomError, match=words):
        from_query(query)


@pytest.fixture
def first_page(ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The address at which `explore` begins, and which it opens in a browser."""

    def begun(*words: str) -> str:
        opened = list[str]()
        loop = SimpleNamespace(add_callback=lambda call, page: call(page), start=interrupted)
        server = SimpleNamespace(port=1234, io_loop=loop, stop=lambda: None, show=opened.append)
        monkeypatch.setattr("ringloom.cli.explore.explore.serve", lambda *_: server)
        url = ringloom.json("explore", "--port", "0", "--open", *words)["url"]
        assert [url] == [f"http://127.0.0.1:1234{page}" for page in opened]
        return str(url)

    return begun


def interrupted() -> None:
    raise KeyboardInterrupt


def test_the_page_begins_with_the_scenario_of_the_command(
    first_page: Callable[..., str], ringloom: CommandLine, tmp_path: Path
) -> None:
    assert first_page() == "http://127.0.0.1:1234/"
    file = tmp_path / "slow.toml"
    file.write_text("speeds = [1.0, 0.5, 1.0, 1.0]\nshare = 0.25\n")
    words = "--ranks 4 --hardware h100 --no-overlap --slow-link 0-1=0.5 --topology torus:4"
    more = "--placement 1,0,2,3 --launch-latency 1e-3 --recv-buffers 2 --scenario"
    query = dict(parse_qsl(urlsplit(first_page(*words.split(), *more.split(), str(file))).query))
    assert from_query(query).scenario == Scenario(
        overlap=False,
        speeds={0: 1.0, 1: 0.5, 2: 1.0, 3: 1.0},
        links={(0, 1): 0.5},
        topology="torus:4",
        buffers=2,
        share=0.25,
        placement=[1, 0, 2, 3],
        launch=1e-3,
    )
    assert (query["ranks"], query["hardware"]) == ("4", "h100")
    file.write_text("late = true\n")
    for words, why in (
        (f"--scenario {file}", "the page has no late"),
        ("--straggler 8=0.5", "no rank 8 to slow down"),
        (f"--topology {file}", "a URL must not name files"),
        (f"--hardware {file}", "a URL must not name files"),
    ):
        assert why in ringloom.refused("explore", *words.split())


def test_what_is_like_a_wrong_entry_is_not_told_too() -> None:
    with pytest.raises(ChoiceError) as refused:
        from_query({"heads": "x", "head_dim": "1.5"})
    assert [*refused.value.messages] == ["heads", "head_dim"]


def test_values_are_as_wide_as_keys_where_nothing_else_is_said(
    first_page: Callable[..., str],
) -> None:
    for words, value in (("--head-dim 64", 64), ("--head-dim 192 --v-head-dim 128", 128)):
        choices = from_query(dict(parse_qsl(urlsplit(first_page(*words.split())).query)))
        assert choices.work == rl.Workload(
            seq=2**18, heads=32, head_dim=int(words.split()[1]), v_head_dim=value
        )
        assert choices.command.endswith(f" --ranks 8 --seq 256k {words}")
