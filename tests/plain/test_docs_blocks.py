"""The commands and code of start, how-to pages and README, run as they stand in an empty folder.

With RINGLOOM_PYTHON=PATH every command runs by that interpreter's environment, in a shell.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import STATUS, Block, blocks, equal_texts, execute

import ringloom as rl
from assertions import Assertions
from repository import ROOT
from ringloom.cli import main
from ringloom.planner.masks import MASKS
from ringloom.simulator.costs.terms import TERMS
from ringloom.simulator.hardware.schema import OPTIONAL
from ringloom.simulator.network.topology import KINDS as TOPOLOGIES

DOCS = ROOT / "docs"
RUN = [ROOT / "README.md", DOCS / "start.md", *sorted((DOCS / "how-to").glob("*.md"))]
KINDS = {"bash": "shown", "py": "shown", "text": "text"}
KINDS |= dict.fromkeys(("{include}", "{literalinclude}"), "included")
# Blocks of a page that are never run: they need a cluster, or do not end.
SHOWN = {
    "train": 1,
    "packed": 1,
    "start": 2,
    "cluster": 1,
    "nodes": 4,
    "see": 1,
    "sweep": 1,
    "whole_decision": 1,
}
REGISTRIES: list[dict[str, Any]] = [rl.SCHEDULES, MASKS, TOPOLOGIES, TERMS, OPTIONAL]
OUTSIDE = os.environ.get("RINGLOOM_PYTHON", "")
PYTHON = OUTSIDE or sys.executable
# A gloo thread that lets go of a tensor while its interpreter ends aborts a script that is done:
# one run in thirty of any script on a busy machine, whatever it computes.
ABORTED_AT_EXIT = "terminate called without an active exception"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; modules made there and what they register are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    modules, before = set(sys.modules), [dict(registry) for registry in REGISTRIES]
    yield tmp_path
    for registry, rows in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(rows)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def follow(page: Path, capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """Do what a page says, in the folder that we are in; what was done, by kind."""
    assertions = Assertions()
    scope: dict[str, object] = {"__name__": "__page__", **assertions.names}
    done = Counter[str]()
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.text)
            kind = "file"
        elif block.language == "python":
            execute(block, page, scope, assertions.compile)
            kind = "python"
        elif block.language == "console":
            command(block, page, capsys)
            kind = "console"
        else:
            assert block.language in KINDS, f"{page}:{block.line}: {block.language}?"
            kind = KINDS[block.language]
        done[kind] += 1
    assert assertions.loose == [], f"{page}: these lines hold whatever the values are"
    return done


def command(block: Block, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands of a block; what they print is what the page shows, if it shows it."""
    assert block.commands, f"{page}:{block.line} has no command"
    for line in block.commands:
        for _ in range(3 if line.startswith("torchrun") else 1):
            status, printed, complaint = run(line, capsys)
            if ABORTED_AT_EXIT not in complaint:
                break
        assert status == 0, f"{page}:{block.line}: {line}\n{printed}{complaint}"
    if block.shown.strip():
        assert equal_texts(printed, block.shown), f"{page}:{block.line} prints\n{printed}"


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, output and complaint of a command; ours runs in this process unless told."""
    words = shlex.split(line.removesuffix(STATUS), comments=True)
    if words[0] == "ringloom" and not OUTSIDE:
        status = main(words[1:])
        printed, complaint = capsys.readouterr()
        if line.endswith(STATUS):
            return 0, f"{printed}{status}\n", complaint
        return status, printed, complaint
    shell = {**os.environ, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
    if not OUTSIDE:
        shell |= {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        ["bash", "-c", line], env=shell, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(
    page: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = follow(page, capsys)
    assert done.total() > done["shown"] + done["text"], "a page without code that runs"
    assert done["shown"] == SHOWN.get(page.stem, 0)


@pytest.mark.parametrize("name", ["train_torch.py", "train_jax.py", "train_packed_torch.py"])
def test_an_example_of_training_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer steps than its page asks for, whose losses are those of one device."""
    line = f"python {ROOT / 'docs' / 'examples' / name} --steps 3"
    status, printed, complaint = run(line, capsys)
    assert status == 0, printed + complaint


def test_the_python_of_the_first_page_needs_neither_torch_nor_jax(scratch: Path) -> None:
    code = "".join(b.text for b in blocks(DOCS / "start.md") if b.language == "python")
    assert "rl.run(" in code
    hidden = "import sys; sys.modules |= {'torch': None, 'jax': None}\n"
    shell = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([PYTHON, "-c", hidden + code], env=shell, timeout=300, check=True)


def test_a_page_that_says_something_wrong_fails(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = scratch / "page.md"
    for said, complaint in (
        ("```console\n$ ringloom plan ring --ranks 0 --seq 9\n```\n", "ranks"),
        ("```console\n$ ringloom plan nothing --ranks 2 --seq 9\n```\n", "unknown schedule"),
        ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "page.md:2"),
        ("```console\n$ python -c 'print(2)'\n3\n```\n", "page.md:2"),
        ("```console\nno command\n```\n", "has no command"),
        ("```fortran\nEND\n```\n", "page.md:2"),
        ("```python\nx = 3584\nassert x > 1792\n```\n", r"whatever the values are\s.*\[3\]"),
    ):
        page.write_text(said)
        with pytest.raises(AssertionError, match=complaint):
            follow(page, capsys)
