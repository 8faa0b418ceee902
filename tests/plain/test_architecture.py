"""The house rules, tried on this repository, on a house that keeps them and on some that do not."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from house_rules import (
    BELOW,
    FRAMEWORKS,
    RULES,
    Rule,
    bare_imports,
    folders_left_out_of_the_wheel,
    frameworks_outside_runtimes,
    imports_that_point_up,
    is_part,
    long_files,
    masks_known_by_name,
    names_that_name_no_idea,
    plan_names_read,
    prints_below_the_front_door,
    relative_imports,
    schedules_known_by_name,
    sources,
)
from repository import ROOT

# What breaks each rule: the file, its text, and what the complaint must say.
BREACHES: list[tuple[Rule, str, str, str]] = [
    (imports_that_point_up, "planner/a.py", "import ringloom.simulator.costs", "simulator.costs"),
    (imports_that_point_up, "planner/b/c.py", "from ringloom import plan", "ringloom"),
    (imports_that_point_up, "simulator/a.py", "def f():\n    import ringloom.codegen", "codegen"),
    (
        imports_that_point_up,
        "codegen/a.py",
        "from ringloom.runtimes.oracle import run",
        "ringloom.runtimes.oracle",
    ),
    (imports_that_point_up, "runtimes/a.py", "__import__('ringloom.simulator')", "simulator"),
    (
        imports_that_point_up,
        "codegen/a.py",
        "import importlib\nimportlib.import_module(name=f'ringloom.runtimes.{x}')",
        "runtimes.",
    ),
    (
        imports_that_point_up,
        "simulator/a.py",
        "import importlib as i\nT = {'a': 'ringloom.runtimes.x:run'}\ni.import_module(T['a'])",
        "ringloom.runtimes.x:run",
    ),
    (bare_imports, "planner/a.py", "from planner.ir import x", "planner.ir without"),
    (relative_imports, "planner/a.py", "from . import masks", "planner/a.py:1"),
    (relative_imports, "ringloom/a.py", "\nfrom ..planner import ir", "ringloom/a.py:2"),
    (frameworks_outside_runtimes, "planner/a.py", "def f():\n    import torch", "torch"),
    (frameworks_outside_runtimes, "codegen/a.py", "from jax.sharding import Mesh", "jax.sharding"),
    (frameworks_outside_runtimes, "ringloom/a.py", "__import__('jax')", "jax"),
    (long_files, "codegen/a.py", "x = 1\n" * 401, "401 lines"),
    (long_files, "tests/plain/test_a.py", "x = 1\n" * 401, "401 lines"),
    (names_that_name_no_idea, "simulator/utils.py", "", "utils.py"),
    (names_that_name_no_idea, "planner/common/ir.py", "", "common"),
    (folders_left_out_of_the_wheel, "planner/b/c.py", "", "planner/b"),
    (prints_below_the_front_door, "runtimes/a.py", "\nprint(1)", "runtimes/a.py:2"),
    (prints_below_the_front_door, "planner/a.py", "list(map(print, [1]))", "planner/a.py:1"),
    (
        schedules_known_by_name,
        "codegen/a.py",
        "from ringloom.planner.schedules.ring import ring",
        "ring",
    ),
    (schedules_known_by_name, "planner/loops/a.py", "x = y == 'zigzag'", "zigzag"),
    (schedules_known_by_name, "codegen/a.py", "x = y in ('a', 'burst')", "burst"),
    (schedules_known_by_name, "codegen/a.py", "x = {'usp': 1}", "usp"),
    (schedules_known_by_name, "codegen/a.py", "x = y.startswith('striped:')", "striped"),
    (
        schedules_known_by_name,
        "codegen/a.py",
        "match x:\n    case 'balanced':\n        y = 1",
        "balanced",
    ),
    (
        masks_known_by_name,
        "codegen/a.py",
        "from ringloom.planner.masks import Mask, Window",
        "Window",
    ),
    (
        masks_known_by_name,
        "planner/a.py",
        "from ringloom.planner.masks.blocks import Blocks",
        "Blocks",
    ),
    (plan_names_read, "codegen/a.py", "x = program.forward.name", "codegen/a.py:1"),
    (plan_names_read, "planner/loops/a.py", "\nx = plan.name", "planner/loops/a.py:2"),
]

# What must not be mistaken for a breach.
GOOD_HOUSE = {
    "planner/ir.py": "x = 1\n" * 400,
    "planner/schedules/__init__.py": "",
    "planner/schedules/ring.py": "from ringloom.planner.ir import x\n",
    "simulator/costs.py": "import ringloom.planner.ir\n",
    "codegen/torch/__init__.py": "'The ring of zigzag.'\nHEAD = 'import torch, ring'\n",
    "codegen/torch/parts/__init__.py": "",
    "codegen/torch/parts/merge.py": "import torch\n"
    "from ringloom.codegen.torch.parts.wide import wide\n",
    "codegen/torch/parts/check.py": "print(1)\n",
    "codegen/programs.py": "def name(plan):\n    return plan.name\n",
    "planner/masks/__init__.py": "from ringloom.planner.masks.window import Window\n",
    "planner/workload.py": "from ringloom.planner.masks import Causal, Mask\n",
    "planner/loops/__init__.py": "x = kind == 'causal'\n",
    "planner/planning.py": "from ringloom.planner.schedules import ring\nx = plan.name == 'ring'\n",
    "runtimes/torch_ranks.py": "def run():\n    import torch\n    import ringloom.codegen\n",
    "ringloom/cli.py": "import importlib\nfrom ringloom.runtimes import oracle\n"
    "print(importlib.import_module('ringloom.simulator.costs'))\n",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def build(root: Path, files: dict[str, str]) -> Path:
    return write(root, {f"{package}/__init__.py": "" for package in BELOW} | files)


@pytest.mark.parametrize("rule", RULES)
def test_the_repository_keeps(rule: Rule) -> None:
    assert rule(ROOT) == []


def test_a_good_house_gives_no_complaint(tmp_path: Path) -> None:
    house = build(tmp_path, GOOD_HOUSE)
    assert [complaint for rule in RULES for complaint in rule(house)] == []


@pytest.mark.parametrize(("rule", "name", "text", "said"), BREACHES)
def test_a_breach_is_found(rule: Rule, name: str, text: str, said: str, tmp_path: Path) -> None:
    complaints = rule(build(tmp_path, {**GOOD_HOUSE, name: text}))
    assert len(complaints) == 1
    assert said in complaints[0]


def test_every_rule_has_a_breach() -> None:
    assert {rule for rule, *_ in BREACHES} == {*RULES}


@pytest.mark.parametrize("package", BELOW)
def test_a_rule_that_finds_no_file_fails(package: str, tmp_path: Path) -> None:
    (build(tmp_path, {}) / package / "__init__.py").unlink()
    for rule in RULES:
        with pytest.raises(AssertionError, match=f"no file in {package}"):
            rule(tmp_path)


def test_the_wheel_has_one_name_at_its_top_and_all_packages() -> None:
    setuptools = pytest.importorskip("setuptools")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    include = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = set(setuptools.find_packages(str(ROOT), include=include))
    assert {name.split(".")[0] for name in packages} == {"ringloom"}
    folders = {path.parent.relative_to(ROOT) for name in BELOW for path in sources(ROOT, name)}
    names = {".".join(folder.parts) for folder in folders}
    assert {n if n.split(".")[0] == "ringloom" else f"ringloom.{n}" for n in names} <= packages


def names_of_modules(root: Path, package: str) -> list[str]:
    """All but parts of programs."""
    paths = [path.relative_to(root) for path in sources(root, package)]
    paths = [path.with_suffix("") for path in paths if not is_part(path.as_posix())]
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def frameworks_loaded_by(names: list[str], root: Path, stand_ins: Path) -> list[str]:
    """Import the modules in a fresh interpreter; which frameworks are loaded then?

    Stand-ins for the frameworks come first on the path, so that an import of one succeeds, and is
    seen, on a machine that has none.
    """
    write(stand_ins, {f"{framework}.py": "" for framework in FRAMEWORKS})
    probe = (
        "import importlib, sys\n"
        f"sys.path[:0] = {[str(stand_ins), str(root)]!r}\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"sys.stdout.write(' '.join({FRAMEWORKS!r} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stdout.split())


@pytest.mark.parametrize("package", ["planner", "simulator", "codegen"])
def test_no_module_below_the_runtimes_loads_a_framework(package: str, tmp_path: Path) -> None:
    names = [f"ringloom.{name}" for name in names_of_modules(ROOT, package)]
    assert frameworks_loaded_by(names, ROOT, tmp_path) == []


def test_the_front_door_loads_no_framework(tmp_path: Path) -> None:
    assert "ringloom.api" in names_of_modules(ROOT, "ringloom")
    assert frameworks_loaded_by(["ringloom.api"], ROOT, tmp_path) == []


def test_a_framework_loaded_on_import_is_seen(tmp_path: Path) -> None:
    house = build(tmp_path / "house", {"planner/passes/__init__.py": "import torch, jax"})
    names = names_of_modules(house, "planner")
    assert names == ["planner", "planner.passes"]
    assert frameworks_loaded_by(["planner"], house, tmp_path / "stand_ins") == []
    assert frameworks_loaded_by(names, house, tmp_path / "stand_ins") == ["jax", "torch"]
