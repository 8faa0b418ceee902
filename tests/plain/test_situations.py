"""The page on choosing recommends what compare recommends; generated text is stored by hash."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import stored as storage
from situations import SITUATIONS, Answer, answer, are_accepted, find_unsupported, reason
from stored import load_text

from repository import ROOT
from ringloom.cli import command_of, main

PAGE = (ROOT / "docs/how-to/choose.md").read_text(encoding="utf-8")
ROWS = "| One node | `usp:ulysses=8` | `zigzag`, `burst --trim blocks` | ring is slower |\n"
SPLIT = (
    "--ranks 8 --seq 16k --heads 8 --kv-heads 4 --hardware a100-pcie"
    ' --mask "causal & documents:9000,7384"'
)


def test_every_situation_is_a_comparison_of_its_own() -> None:
    assert len(SITUATIONS) >= 15
    assert len(set(SITUATIONS.values())) == len(SITUATIONS)
    for options in SITUATIONS.values():
        with command_of("compare").make_context("compare", shlex.split(options)) as context:
            assert not context.params["schedules"]


@pytest.mark.parametrize("options", [SPLIT, SITUATIONS["Decoding one token"]])
def test_schedules_accepts_the_names_that_compare_prints(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = answer("", options)
    assert any(" --trim blocks" in name for name in first.names)
    words = [*shlex.split(options), "--schedules", ",".join(first.names), "--json"]
    assert main(["compare", *words]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["schedule"] for row in rows} == set(first.names)
    assert rows[0]["schedule"] == first.fastest


def test_a_name_that_is_no_schedule_is_not_accepted() -> None:
    assert are_accepted(SPLIT, ["usp:ulysses=4 --trim blocks", "ring --by-rows"])
    assert not are_accepted(SPLIT, ["spiral"])
    assert not are_accepted(SPLIT, ["ring, zigzag"])


def test_the_reason_leaves_out_the_fastest_schedule() -> None:
    said = {
        "schedule": "zigzag",
        "answer": "Use zigzag: 1 ms.",
        "reason": "Use zigzag: 1 ms. ring takes 2x as long as zigzag: it waits (0 s in zigzag).",
    }
    assert reason(said) == "ring takes 2x as long: it waits (0 s in the fastest)."


def test_a_recommendation_that_no_row_supports_is_found() -> None:
    assert find_unsupported("Use `zigzag`, `burst` or `usp`.\n", ROWS) == []
    assert find_unsupported("Use `tree:node=8` or `ring`, not `--check`.\n", ROWS) == [
        "ring",
        "tree",
    ]
    assert find_unsupported("```console\n$ compare `ring`\n```\n", ROWS) == []
    assert "generated/situations.md" in PAGE


@pytest.fixture
def numbers() -> Iterator[int]:
    return iter(range(9))


def test_text_is_made_again_only_when_a_source_changes(
    tmp_path: Path, numbers: Iterator[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "planner/plan.py"
    source.parent.mkdir()
    (tmp_path / "constraints.txt").write_text("")
    monkeypatch.setattr(storage, "ROOT", tmp_path)

    def text() -> str:
        storage.digest.cache_clear()
        return load_text("page", lambda: [str(next(numbers))], tmp_path / "tables")

    source.write_text("a = 1")
    assert [text(), text()] == ["0\n", "0\n"]
    source.write_text("a = 2")
    assert [text(), text()] == ["1\n", "1\n"]
    source.rename(source.with_name("other.py"))
    assert text() == "2\n"
    assert len([*(tmp_path / "tables").iterdir()]) == 1
    storage.digest.cache_clear()


def test_an_answer_holds_what_the_table_shows() -> None:
    one = answer("a window", "--ranks 2 --seq 1k --heads 2 --hardware h100")
    assert isinstance(one, Answer)
    assert {one.fastest, *one.ties} <= set(one.names)
