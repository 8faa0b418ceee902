"""Each extra brings what its purpose imports: with the packages of all others hidden."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = "planner", "simulator", "codegen", "runtimes", "ringloom"
HIDDEN = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        return None if name.partition(".")[0] in {hidden!r} else super().find_spec(name, *rest)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.path[:0] = {folders!r}
import {modules}
"""


def promised() -> list[tuple[str, str, str]]:
    """(extra, module) of every call of `import_optional`, which says that one brings the other."""
    calls = [
        node
        for path in sorted((ROOT / "ringloom").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_optional"
    ]
    return sorted({(*(ast.literal_eval(word) for word in call.args), "") for call in calls})


# extras, modules or scripts, the folder of scripts
PURPOSES = [
    *promised(),
    ("", "ringloom.api, ringloom.cli", ""),
    *(("docs", "*.py", folder) for folder in ("docs", "docs/pictures")),
    ("bench,torch,app", "bench_*.py", "benchmarks"),
]


class NotHere(Exception):
    """Raised for a package that this environment lacks."""


def brought(requirements: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """The distributions that requirements bring, those of their requirements included."""
    every, left = set[str](), [(Requirement(line), frozenset(extras)) for line in requirements]
    seen = set[tuple[str, frozenset[str]]]()
    while left:
        needed, of = left.pop()
        marks = [{"extra": extra} for extra in of or {""}]
        key = canonicalize_name(needed.name), frozenset(needed.extras)
        if key in seen or (needed.marker and not any(map(needed.marker.evaluate, marks))):
            continue
        seen.add(key)
        if key[0] == PROJECT["name"]:
            left += [(Requirement(line), frozenset()) for line in named(needed.extras)]
            continue
        every.add(key[0])
        try:
            left += [(Requirement(line), key[1]) for line in requires(needed.name) or ()]
        except PackageNotFoundError as error:
            raise NotHere(needed.name) from error
    return every


def named(extras: Iterable[str]) -> list[str]:
    """The requirements of extras of ours."""
    return [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]


@pytest.mark.parametrize(("extras", "modules", "folder"), PURPOSES)
def test_extras_bring_all_that_their_purpose_imports(
    extras: str, modules: str, folder: str
) -> None:
    try:
        here = brought([*PROJECT["dependencies"], *named(filter(None, extras.split(",")))])
    except NotHere as missing:
        pytest.skip(f"{missing} is not installed here")
    scripts = {path.stem for path in (ROOT / folder).glob("*.py")}
    hidden = {
        module
        for module, owners in packages_distributions().items()
        if not here & {canonicalize_name(owner) for owner in owners}
    }.difference(OURS, scripts)
    if "*" in modules:
        modules = ", ".join(sorted(path.stem for path in (ROOT / folder).glob(modules)))
    folders = [str(ROOT / name) for name in (folder, "", "tests")]
    code = HIDDEN.format(hidden=hidden, folders=folders, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_ci_makes_is_made_from_nothing_at_night() -> None:
    makefile, ci = ((ROOT / name).read_text() for name in ("Makefile", ".ci/run"))
    sections = re.findall(r"^section (\S+)", ci, re.MULTILINE)
    fresh = re.search(r"^FRESH *:= (.*)$", makefile, re.MULTILINE)
    assert fresh
    assert set(sections) <= set(fresh[1].split())


def test_ci_builds_the_documentation_in_an_environment_that_the_demo_made() -> None:
    own = re.findall(r"^section (\S+) VENV=(\S+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert [target for target, _ in own] == ["demo", "docs"]
    assert len({place for _, place in own}) == 1
