"""The additions of the pages, made in a copy of the tree: one file each, and a target's name."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks

from command_line import CommandLine
from repository import ROOT

PACKAGES = ("planner", "simulator", "codegen", "runtimes", "ringloom")
PAGES = ROOT / "docs" / "how-to"
# Each page, its file, and the file of the tree that it says to put that into.
PLACES = {
    "add_mask": ("image.py", "planner/masks/image.py"),
    "add_preset": ("l40s.toml", "simulator/hardware/presets/l40s.toml"),
    "add_topology": ("fat_tree.py", "simulator/network/topology.py"),
    "add_cost": ("dispatch.py", "simulator/costs/terms.py"),
}
SIMULATE = ("simulate", "allgather", "--ranks", "8", "--seq", "64k", "--mask", "full", "--json")
COMMANDS = {
    "h100": (*SIMULATE, "--hardware", "h100"),
    "l40s": (*SIMULATE, "--hardware", "l40s"),
    "switch": (*SIMULATE, "--topology", "switch"),
    "fat_tree:4": (*SIMULATE, "--topology", "fat_tree:4"),
    "fat_tree:8": (*SIMULATE, "--topology", "fat_tree:8"),
    "costly": (*SIMULATE, "--hardware", "costly"),
    "schedules": ("schedules",),
    "visiting": ("simulate", "visiting", *SIMULATE[2:]),
    "image": (
        *("run", "zigzag", "--ranks", "4", "--seq", "64", "--heads", "2", "--head-dim", "8"),
        *("--mask", "image:8,24 & window:16,16", "--check", "--json"),
    ),
    "emit": ("emit", "generators", "ring", "--ranks", "4", "--seq", "64", "--pass", "forward"),
    "help": ("simulate", "--help"),
}
PLANNER_NAMES = """from ringloom.planner.ir import Attend, Move, Plan, Step
from ringloom.planner.layouts import by_tokens
from ringloom.planner.schedules.table import schedule
from ringloom.planner.workload import Workload"""
# Runs all commands in one process: the output of each as one JSON object.
SCRIPT = """
import contextlib, io, json, sys
from ringloom.cli import main
printed = {}
for name, words in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(words)
    assert status == 0, (name, status)
    printed[name] = out.getvalue()
print(json.dumps(printed))
"""


def text(page: str) -> str:
    return (PAGES / f"{page}.md").read_text()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of the commands in a copy of the tree with each file put where its page says."""
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tree / package, ignore=without, symlinks=True)
    for page, (file, place) in PLACES.items():
        assert f"`{place}`" in text(page) or f"`{Path(place).parent}/`" in text(page), page
        with (tree / place).open("a") as target:
            target.write("\n" + file_of(page, file))
    add_schedule(tree)
    add_target(tree)
    (line,) = (line for line in text("add_cost").splitlines() if line.startswith("dispatch = "))
    preset = tree / PLACES["add_preset"][1]
    costly = preset.read_text().replace("[attention]", f"[attention]\n{line}\n#")
    preset.with_name("costly.toml").write_text(costly)
    command = [sys.executable, "-c", SCRIPT, json.dumps(COMMANDS)]
    shell = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "120"}
    done = subprocess.run(command, env=shell, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def file_of(page: str, name: str) -> str:
    (block,) = (block for block in blocks(PAGES / f"{page}.md") if block.file == name)
    return block.text


def add_schedule(tree: Path) -> None:
    """The file, its names imported from the planner."""
    code = file_of("add_schedule", "visiting.py").replace("rl.", "")
    code = code.replace("import ringloom as rl", PLANNER_NAMES)
    (tree / "planner/schedules/rings/visiting.py").write_text(code)


def add_target(tree: Path) -> None:
    """The package, and its name in the table."""
    (tree / "codegen/generators").mkdir()
    (tree / "codegen/generators/__init__.py").write_text(file_of("add_target", "numpy_target.py"))
    table = tree / "codegen/programs.py"
    before = table.read_text()
    after = before.replace('= ("torch", "jax")', '= ("torch", "jax", "generators")')
    assert before != after
    table.write_text(after)


def makespan(printed: dict[str, str], name: str) -> float:
    return float(json.loads(printed[name])["makespan_s"])


@pytest.mark.parametrize("name", ["l40s", "fat_tree:4"])
def test_none_of_it_is_known_without(name: str, ringloom: CommandLine) -> None:
    assert f"'{name}': neither a file nor one of" in ringloom.refused(*COMMANDS[name])


def test_a_schedule_is_one_file(printed: dict[str, str]) -> None:
    assert re.search("visiting .*TokenRing", printed["schedules"])
    assert makespan(printed, "visiting") > 0


def test_a_mask_is_one_file(printed: dict[str, str]) -> None:
    assert json.loads(printed["image"])["exact"] is True


def test_a_target_is_one_package_and_its_name(printed: dict[str, str]) -> None:
    compile(printed["emit"], "numpy", "exec")
    assert printed["emit"].count("merge(output, attend(") == 2
    assert len(file_of("add_target", "numpy_target.py").splitlines()) <= 150


def test_a_preset_is_one_file(printed: dict[str, str]) -> None:
    assert makespan(printed, "l40s") > makespan(printed, "h100")


def test_a_topology_is_one_function_in_one_file(printed: dict[str, str]) -> None:
    assert makespan(printed, "fat_tree:4") > makespan(printed, "switch")
    assert makespan(printed, "fat_tree:8") == pytest.approx(makespan(printed, "switch"))
    assert "fat_tree:4" in printed["help"]


def test_a_cost_term_is_one_function_and_a_line_in_presets(printed: dict[str, str]) -> None:
    before, after = makespan(printed, "l40s"), makespan(printed, "costly")
    assert before + 49e-6 < after < before + 9 * 50e-6
