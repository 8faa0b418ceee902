"""Breaks the source of codegen and runtimes in small ways, and counts what the tests notice.

    python tests/source_mutants.py mutants.json [--number 60] [--seed 2026] [--limit 600]

Draws mutants with a fixed seed: a comparison turned around, a number one larger, two arguments
swapped, a condition negated, a statement dropped. Each one is written into a clone of the last
commit and tried with the tests of its framework alone, up to the first that fails; files whose
tests noticed earlier mutants come first. Results go into the JSON file as they come, so a run that
was stopped goes on where it stopped. Not a test: work for a night.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from resource import RLIMIT_CPU, setrlimit
from signal import SIGXCPU

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "codegen", "runtimes"
OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
DROPPED = ast.Assign | ast.AugAssign | ast.Expr | ast.Raise | ast.If | ast.For
# Tried first, as they are quick and look at most of a framework's code; all the others follow.
FIRST = {
    "torch": ["tests/on_torch/test_loops.py", "tests/on_torch/test_programs.py"],
    "jax": ["tests/on_jax/test_loops.py", "tests/on_jax/test_programs.py"],
}
EMITTED = ["tests/plain/test_emitted_files.py", "tests/plain/test_emission.py"]


@dataclass(frozen=True)
class Mutant:
    """Bytes of a file that are replaced by others."""

    path: Path
    line: int
    kind: str
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind} {self.start}"

    def of(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    """The kind of each change of one expression, what is replaced, and by what."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in OTHER:
            turned = ast.Compare(left, [OTHER[type(operator)]()], [right])
            yield "comparison", node, ast.unparse(turned)
        case ast.BinOp(left, operator, right) if type(operator) in OTHER:
            yield "sign", node, ast.unparse(ast.BinOp(left, OTHER[type(operator)](), right))
        case ast.Constant(int(number)) if not isinstance(number, bool):
            yield "number", node, str(number + 1)
        case ast.Call(function, [first, second, *rest], keywords):
            if ast.dump(first) != ast.dump(second):
                swapped = ast.Call(function, [second, first, *rest], keywords)
                yield "arguments", node, ast.unparse(swapped)
        case ast.If(test) | ast.IfExp(test):
            yield "condition", test, f"not ({ast.unparse(test)})"


def docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def dropped(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a block that may be left out."""
    if isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.While | ast.With):
        yield from (s for s in node.body if isinstance(s, DROPPED) and not docstring(s))


def annotations(tree: ast.Module) -> set[int]:
    outer = [
        getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")
    ]
    return {id(inner) for node in outer if node for inner in ast.walk(node)}


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a file."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def mutant(kind: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return Mutant(path, node.lineno, kind, start, end, text)

    tree = ast.parse(source)
    left_out = annotations(tree)
    nodes = [node for node in ast.walk(tree) if id(node) not in left_out]
    made = [mutant(*change) for node in nodes for change in changes(node)]
    return made + [mutant("dropped", s, "pass") for node in nodes for s in dropped(node)]


def drawn(number: int, seed: int) -> list[Mutant]:
    """A file by its size, then one of its mutants."""
    random = Random(seed)
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    paths = [path.relative_to(ROOT) for path in files]
    sizes = [path.stat().st_size for path in files]
    drawn: dict[str, Mutant] = {}
    while len(drawn) < number:
        (path,) = random.choices(paths, sizes)
        if of_file := mutants(path):
            mutant = random.choice(of_file)
            drawn.setdefault(str(mutant), mutant)
    return list(drawn.values())


def runs(path: Path, results: dict[str, str]) -> list[list[str]]:
    """The test files that a mutant of a file has to pass: the likely ones in one run, the rest."""
    kind = next((name for name in FIRST if name in path.parts), "")
    if kind:
        likely, every = FIRST[kind], [*files(f"on_{kind}"), *EMITTED]
    else:
        programs = [file for first in FIRST.values() for file in first]  # of both frameworks
        likely, every = programs * (path.parts[0] == "codegen") + naming(path), files("plain")
    failed = Counter(re.findall(r"tests/\w+/\w+\.py", " ".join(results.values())))
    first = dict.fromkeys([*likely, *(file for file in every if failed[file])])
    return [sorted(first, key=lambda file: -failed[file]), [x for x in every if x not in first]]


def files(folder: str) -> list[str]:
    return [
        str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests").glob(f"{folder}/test_*"))
    ]


def naming(path: Path) -> list[str]:
    """The tests of any framework that import a module, or else its package."""
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    for name in (module, module.rpartition(".")[0]):
        said = re.compile(rf"\b{name} import")
        if near := [file for file in files("*") if said.search((ROOT / file).read_text())]:
            return near
    return ["tests/plain/test_emission.py"]


def verdict(mutant: Mutant, clone: Path, limit: int, results: dict[str, str]) -> str:
    """The first test that fails, "too long" or "survived"."""
    where = clone / mutant.path
    before = where.read_bytes()
    where.write_bytes(mutant.of(before))
    environment = {**os.environ, "PYTHONPATH": str(clone), "RINGLOOM_PROFILE": "mutants"}
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    try:
        for words in runs(mutant.path, results):
            done = subprocess.run(
                [*pytest, *words],
                cwd=clone,
                env=environment,
                capture_output=True,
                text=True,
                timeout=10 * limit,
                check=False,
                preexec_fn=lambda: setrlimit(RLIMIT_CPU, (limit, limit + 5)),
            )
            if done.returncode == -SIGXCPU:
                return "too long"
            if done.returncode:
                lines = done.stdout.splitlines()
                failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
                return failed[0].split(" - ")[0] if failed else f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        return "too long"
    finally:
        where.write_bytes(before)
    return "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--limit", type=int, default=600, help="processor seconds of a run")
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(given.results.read_text()) if given.results.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
        for mutant in drawn(given.number, given.seed):
            if str(mutant) not in results:
                results[str(mutant)] = verdict(mutant, clone, given.limit, results)
                given.results.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{mutant!s:60} {results[str(mutant)]}", flush=True)
    survived = [name for name, said in results.items() if said == "survived"]
    print(f"{len(results)} mutants, {len(survived)} survived")


if __name__ == "__main__":
    main()
