"""The house rules: what may import what, and how big and how named a file may be.

A rule is a function from a root folder to the complaints it has.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from ringloom.planner.masks import MASKS
from ringloom.planner.schedules import SCHEDULES

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
OUR_MODULE = re.compile(r"ringloom(\.\w+)+(:\w+)?")
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
    """Our modules named in strings, "ringloom.x:run", where a file imports by name at all."""
    if any(isinstance(node, ast.Call) and called(node) in IMPORTERS for node in nodes):
        texts = (literal(node) for node in nodes if isinstance(node, ast.Constant))
        yield from (text for text in texts if OUR_MODULE.fullmatch(text))


def top(name: str) -> str:
    """The package of a module: `planner` of ringloom.planner.ir."""
    first, *rest = name.split(".")
    return rest[0] if first == "ringloom" and rest and rest[0] in BELOW else first


def imports_that_point_up(root: Path) -> Complaints:
    return [
        f"{path} reaches up to {name}"
        for package, path, nodes in modules(root)
        for name in sorted({*written_imports(nodes), *tabled_imports(nodes)})
        if top(name) in BELOW.keys() - BELOW[package] - {package}
    ]


def bare_imports(root: Path) -> Complaints:
    return [
        f"{path} imports {name} without ringloom in front"
        for _, path, nodes in modules(root)
        for name in sorted({*written_imports(nodes)})
        if name.split(".")[0] in BELOW.keys() - {"ringloom"}
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
        names = [
            n for n in set(written_imports(nodes)) if n.startswith("ringloom.planner.schedules")
        ]
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
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("ringloom.planner.masks")
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
    bare_imports,
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
