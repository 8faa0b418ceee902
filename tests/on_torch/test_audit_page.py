"""The page on audits says of its commands what they print."""

import json
from pathlib import Path
from typing import Any

import pytest
from pages import STATUS, blocks

from repository import ROOT
from ringloom.auditing.cases import case_of
from ringloom.auditing.verdict import Audit
from ringloom.cli import main
from ringloom.planner.workload import Workload
from ringloom.runtimes.audit import Report

pytest.importorskip("torch")
PAGE = ROOT / "docs" / "how-to" / "audit.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())
# Words of a verdict that the page repeats; rank by rank where it says so.
MISPLACED = "another mask", "query 8 (rank 0, row 8)", "key 16 (rank 1, row 0)", "1536"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the page, in a folder with its files."""
    monkeypatch.chdir(tmp_path)
    commands = list[list[str]]()
    for block in blocks(PAGE):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.language == "python" and "write_text" in block.text:
            exec(block.text, {})
        commands += [line.removesuffix(STATUS).split()[1:] for line in block.commands]
    return commands


def test_a_misplaced_layout_is_told_as_the_page_says(
    page: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = next(words for words in page if "contiguous" in words)
    assert main(command) == 1
    printed = " ".join(capsys.readouterr().out.split())
    for words in MISPLACED:
        assert words in TEXT
        assert words in printed
    assert "<title>ringloom audit: ring.py:attend" in Path("audit.html").read_text()


def test_the_loads_of_documents_are_those_that_the_page_says(page: list[list[str]]) -> None:
    order = json.loads(Path("order.json").read_text())
    assert "causal & documents:4,12" in TEXT
    work = Workload(16, mask="causal & documents:4,12")

    def loads(layout: Any) -> list[int]:
        return Audit(case_of(work, 2, layout), Report(), "").work.tolist()

    assert loads(order) == [26, 62]
    assert "rank 0 attends 26 pairs, and rank 1 attends 62" in TEXT
    assert loads("per-document") == [44, 44]
    assert "each rank attends 44 pairs" in TEXT


def test_the_order_of_documents_is_that_of_the_balancer(page: list[list[str]]) -> None:
    from torch.distributed.tensor.experimental import _context_parallel

    balancers = _context_parallel._load_balancer
    balancer = balancers._PerDocumentHeadTailLoadBalancer([[4, 12]], 2, "cpu")
    order = balancer._generate_indices()[0].tolist()
    first, second = json.loads(Path("order.json").read_text())
    assert first + second == order
