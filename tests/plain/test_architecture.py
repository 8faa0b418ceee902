"""The house rules: what may import what, and how big and how named a file may be.

A rule is a function from a root folder to the complaints it has. Each is tried on this repository,
on a small house that keeps every rule, and on houses that break it.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from planner.masks import MASKS
from planner.schedules import SCHEDULES
from repository import ROOT

BELOW = {
    "planner": set[str](),
    "simulator": {"planner"},
    "codegen": {"planner"},
    "runtimes": {"planner", "codegen"},
    "ringloom": {"planner", "simulator", "codegen", "runtimes"},
}
FRAMEWORKS = {"torch", "jax", "jaxlib"}
PLANS = {"plan", "one", "forward", "backward", "program", "first", "second"}
LONGEST = 400
VAGUE = {"utils", "util", "core", "helpers", "helper", "common", "misc"}
OUR_MODULE = re.compile(rf"({'|'.join(BELOW)})(\.\w+)+(:\w+)?")
IMPORTERS = {"__import__", "import_module", "run_module"}

Complaints = list[str]
Rule = Callable[[Path], Complaints]
Nodes = list[ast.AST]


def sources(root: Path, package: str) -> list[Path]:
    files = sorted((root / package).rglob("*.py"))
    assert files, f"no file in {package}: a check that finds nothing must not pass"
    return files


def modules(root: Path) -> Iterator[tuple[str, str, Nodes]]:
    """(package, path, nodes of its tree) of every file of every package."""
    for package in BELOW:
        for path in sources(root, package):
            yield package, str(path.relative_to(root)), parsed(path.read_text(encoding="utf-8"))


@cache
def parsed(text: str) -> Nodes:
    """All nodes of a text's syntax tree, for all rules."""
    return [*ast.walk(ast.parse(text))]


def called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def literal(node: ast.expr) -> str:
    """The text that a string, or the fixed head of an f-string, begins with."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *_]):
            return literal(first)
        case _:
            return ""


def written_imports(nodes: Nodes) -> Iterator[str]:
    """Modules named by import statements and by the arguments of import functions."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.Call(args=args, keywords=keywords) if called(node) in IMPORTERS:
                yield from map(literal, [*args, *(word.value for word in keywords)])


def tabled_imports(nodes: Nodes) -> Iterator[str]:
    """Our modules named in strings, "runtimes.oracle:run", where a file imports by name at all."""
    if any(isinstance(node, ast.Call) and called(node) in IMPORTERS for node in nodes):
        texts = (literal(node) for node in nodes if isinstance(node, ast.Constant))
        yield from (text for text in texts if OUR_MODULE.fullmatch(text))


def top(name: str) -> str:
    return name.split(".")[0]


def imports_that_point_up(root: Path) -> Complaints:
    return [
        f"{path} reaches up to {name}"
        for package, path, nodes in modules(root)
        for name in sorted({*written_imports(nodes), *tabled_imports(nodes)})
        if top(name) in BELOW.keys() - BELOW[package] - {package}
    ]


def relative_imports(root: Path) -> Complaints:
    return [
        f"{path}:{node.lineno} imports relative to itself"
        for _, path, nodes in modules(root)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def frameworks_outside_runtimes(root: Path) -> Complaints:
    """Parts of programs import them: emission reads their text."""
    return [
        f"{path} imports {name}"
        for package, path, nodes in modules(root)
        for name in sorted(set(written_imports(nodes)))
        if package != "runtimes" and not is_part(path) and top(name) in FRAMEWORKS
    ]


def is_part(path: str) -> bool:
    return path.startswith("codegen/") and "parts" in Path(path).parts


def blind(root: Path) -> Iterator[tuple[str, Nodes]]:
    """(path, nodes of its tree) of files that work for any plan, whatever schedule made it."""
    for package, path, nodes in modules(root):
        if package == "codegen" or path.startswith("planner/loops/"):
            yield path, nodes


def schedules_known_by_name(root: Path) -> Complaints:
    """Imports of schedules, and comparisons, cases and keys that are the name of one."""
    complaints = []
    for path, nodes in blind(root):
        names = [n for n in set(written_imports(nodes)) if n.startswith("planner.schedules")]
        complaints += [f"{path} imports {name}" for name in names]
        for node in nodes:
            known = {text for text in looked_at(node) if text.split(":")[0] in SCHEDULES}
            complaints += [f"{path} asks for the schedule {name}" for name in sorted(known)]
    return complaints


def masks_known_by_name(root: Path) -> Complaints:
    """Imports of masks other than Full and Causal: what a mask is stands in its class."""
    known = {mask.__name__ for mask in MASKS.values()} - {"Full", "Causal"}
    return [
        f"{path} imports {alias.name}"
        for _, path, nodes in modules(root)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("planner.masks")
        for alias in node.names
        if alias.name in known and path != "ringloom/api.py" and "masks/" not in path
    ]


def looked_at(node: ast.AST) -> Iterator[str]:
    """The strings that a comparison, a case or the keys of a table look at."""
    match node:
        case ast.Compare(left=left, comparators=others):
            parts: list[ast.AST] = [left, *others]
        case ast.MatchValue(value=value):
            parts = [value]
        case ast.Dict(keys=keys):
            parts = [key for key in keys if key]
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "get"), args=args):
            parts = [*args]
        case _:
            return
    for part in parts:
        elements = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
        yield from (
            e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)
        )


def plan_names_read(root: Path) -> Complaints:
    """A plan's name is for people: `Program.name` hands it on to the header and to PLAN."""
    return [
        f"{path}:{node.lineno} reads the name of a plan"
        for path, nodes in blind(root)
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr == "name"
        and is_plan(node.value)
        and path not in ("codegen/programs.py", "codegen/frame/header.py")
    ]


def is_plan(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in PLANS
    return False


def long_files(root: Path) -> Complaints:
    """Files of the packages, and of the tests where there are some."""
    paths = [path for package in BELOW for path in sources(root, package)]
    paths += (root / "tests").rglob("*.py")
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return [f"{path} has {n} lines" for path, n in lengths.items() if n > LONGEST]


def names_that_name_no_idea(root: Path) -> Complaints:
    paths = [path.relative_to(root) for package in BELOW for path in sources(root, package)]
    return [f"{path} names no idea" for path in paths if VAGUE & {*path.with_suffix("").parts}]


def folders_left_out_of_the_wheel(root: Path) -> Complaints:
    folders = {path.parent for package in BELOW for path in sources(root, package)}
    lacking = sorted(folder for folder in folders if not (folder / "__init__.py").exists())
    return [f"{folder.relative_to(root)} has no __init__.py" for folder in lacking]


def prints_below_the_front_door(root: Path) -> Complaints:
    return [
        f"{path}:{node.lineno} prints"
        for package, path, nodes in modules(root)
        for node in nodes
        if package != "ringloom"
        and not is_part(path)
        and isinstance(node, ast.Name)
        and node.id == "print"
    ]


RULES: list[Rule] = [
    imports_that_point_up,
    relative_imports,
    frameworks_outside_runtimes,
    long_files,
    names_that_name_no_idea,
    folders_left_out_of_the_wheel,
    prints_below_the_front_door,
    schedules_known_by_name,
    masks_known_by_name,
    plan_names_read,
]

# What breaks each rule: the file, its text, and what the complaint must say.
BREACHES: list[tuple[Rule, str, str, str]] = [
    (imports_that_point_up, "planner/a.py", "import simulator.costs", "simulator.costs"),
    (imports_that_point_up, "planner/b/c.py", "from ringloom import plan", "ringloom"),
    (imports_that_point_up, "simulator/a.py", "def f():\n    import codegen", "codegen"),
    (imports_that_point_up, "codegen/a.py", "from runtimes.oracle import run", "runtimes.oracle"),
    (imports_that_point_up, "runtimes/a.py", "__import__('simulator')", "simulator"),
    (
        imports_that_point_up,
        "codegen/a.py",
        "import importlib\nimportlib.import_module(name=f'runtimes.{x}')",
        "runtimes.",
    ),
    (
        imports_that_point_up,
        "simulator/a.py",
        "from importlib import import_module\nT = {'a': 'runtimes.x:run'}\nimport_module(T['a'])",
        "runtimes.x:run",
    ),
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
    (schedules_known_by_name, "codegen/a.py", "from planner.schedules.ring import ring", "ring"),
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
    (masks_known_by_name, "codegen/a.py", "from planner.masks import Mask, Window", "Window"),
    (masks_known_by_name, "planner/a.py", "from planner.masks.blocks import Blocks", "Blocks"),
    (plan_names_read, "codegen/a.py", "x = program.forward.name", "codegen/a.py:1"),
    (plan_names_read, "planner/loops/a.py", "\nx = plan.name", "planner/loops/a.py:2"),
]

# What must not be mistaken for a breach.
GOOD_HOUSE = {
    "planner/ir.py": "x = 1\n" * 400,
    "planner/schedules/__init__.py": "",
    "planner/schedules/ring.py": "from planner.ir import x\n",
    "simulator/costs.py": "import planner.ir\n",
    "codegen/torch/__init__.py": "'The ring of zigzag.'\nHEAD = 'import torch, ring'\n",
    "codegen/torch/parts/__init__.py": "",
    "codegen/torch/parts/merge.py": "import torch\nfrom codegen.torch.parts.wide import wide\n",
    "codegen/torch/parts/check.py": "print(1)\n",
    "codegen/programs.py": "def name(plan):\n    return plan.name\n",
    "planner/masks/__init__.py": "from planner.masks.window import Window\n",
    "planner/workload.py": "from planner.masks import Causal, Mask\n",
    "planner/loops/__init__.py": "x = kind == 'causal'\n",
    "planner/planning.py": "from planner.schedules import ring\nx = plan.name == 'ring'\n",
    "runtimes/torch_ranks.py": "def run():\n    import torch\n    import codegen\n",
    "ringloom/cli.py": "import importlib\nfrom runtimes import oracle\n"
    "print(importlib.import_module('simulator.costs'))\n",
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
    assert frameworks_loaded_by(names_of_modules(ROOT, package), ROOT, tmp_path) == []


def test_the_front_door_loads_no_framework(tmp_path: Path) -> None:
    assert "ringloom.api" in names_of_modules(ROOT, "ringloom")
    assert frameworks_loaded_by(["ringloom.api"], ROOT, tmp_path) == []


def test_a_framework_loaded_on_import_is_seen(tmp_path: Path) -> None:
    house = build(tmp_path / "house", {"planner/passes/__init__.py": "import torch, jax"})
    names = names_of_modules(house, "planner")
    assert names == ["planner", "planner.passes"]
    assert frameworks_loaded_by(["planner"], house, tmp_path / "stand_ins") == []
    assert frameworks_loaded_by(names, house, tmp_path / "stand_ins") == ["jax", "torch"]
