"""Emitted files hold what they need and nothing else, as ruff and mypy would have them."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import ringloom as rl
from ruff_check import assert_as_ruff_has_it
from sampling import square
from strategies import CLASSIC

TARGETS = ("torch", "jax")
SMALL = {"heads": 8, "kv_heads": 4, "head_dim": 8}
MASKS = {
    "full": rl.Full(),
    "causal": rl.Causal(),
    "window": rl.Window(9),
    "documents": rl.Documents((30, 34)) & rl.Causal(),
    "blocks": rl.Blocks(((True, False), (True, True)), 32) | rl.Global(3),
}
SCHEDULES = (*CLASSIC, "striped:grain=4", "allgather:keep=1", "usp:ulysses=2")


@cache
def plans(
    schedule: str, mask: rl.Mask, ranks: int = 4, seq: int = 64, pass_: str = "both"
) -> rl.Plan | tuple[rl.Plan, rl.Plan]:
    return rl.plan(schedule, rl.Workload(seq=seq, mask=mask, **SMALL), ranks, pass_=pass_)


@cache
def sources(target: str) -> dict[str, str]:
    """Programs of every kind under every mask, regular and not, by a name for each."""
    written = {}
    for schedule, name in [*square(SCHEDULES, [*MASKS], every=4), ("balanced", "full")]:
        written[f"{schedule}-{name}"] = rl.emit(plans(schedule, MASKS[name]), target)
    for schedule in SCHEDULES:
        forward = plans(schedule, MASKS["causal"], pass_="forward")
        written[f"{schedule}-forward"] = rl.emit(forward, target)
    for name, mask in MASKS.items():
        written[f"uneven-{name}"] = rl.emit(plans("zigzag", mask, 3), target)
    for schedule in ("ring", "allgather"):
        written[f"dynamic-{schedule}"] = rl.emit(plans(schedule, rl.Full()), target, dynamic=True)
    written["alone"] = rl.emit(plans("ring", rl.Causal(), 1), target)
    written["many"] = rl.emit(plans("zigzag", rl.Causal(), 40, 640), target)
    for number, scale in enumerate((-0.3, 0.0)):
        work = rl.Workload(seq=64, scale=scale, **SMALL)
        written[f"scale-{number}"] = rl.emit(rl.plan("ring", work, 4, pass_="both"), target)
    work = rl.Workload(seq=64, mask=rl.Causal(), sinks=True, v_head_dim=4, **SMALL)
    for schedule in ("burst", "ulysses", "tree"):
        written[f"sinks-{schedule}"] = rl.emit(rl.plan(schedule, work, 4, pass_="both"), target)
    return written


def file_name(name: str) -> str:
    return re.sub("[:=-]", "_", name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all programs."""
    place = tmp_path_factory.mktemp("programs")
    for target in TARGETS:
        for name, source in sources(target).items():
            (place / f"{target}_{file_name(name)}.py").write_text(source, encoding="utf-8")
    return place


def test_ruff_finds_nothing(folder: Path) -> None:
    assert_as_ruff_has_it(folder)


def test_mypy_finds_nothing(folder: Path) -> None:
    """Plain mypy, as somebody runs it over a file without any setting.

    By day over every schedule and mask in some pairs, and over every other kind of program.
    """
    (folder / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*,jax.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
    )
    pairs = square(SCHEDULES, [*MASKS, "forward"], every=4)  # of those that are written
    names = {f"{schedule}-{mask}" for schedule, mask in pairs} & sources("jax").keys()
    names |= {n for n in sources("jax") if n.partition("-")[0] not in SCHEDULES}
    files = [f"{target}_{file_name(name)}.py" for target in TARGETS for name in sorted(names)]
    assert {name.partition("-")[0] for name in names} >= {*SCHEDULES}
    command = [sys.executable, "-m", "mypy", "--config-file", str(folder / "mypy.ini"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_every_function_of_a_file_is_used_and_annotated(target: str) -> None:
    for name, source in sources(target).items():
        tree = ast.parse(source)
        assert not unused(tree), name
        assert not bare(tree), name
        assert max(map(len, source.splitlines())) <= 100, name


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_refuses_and_fails_also_where_python_leaves_assertions_out(target: str) -> None:
    """No line begins with one; of several statements on a line ruff would complain."""
    for name, source in sources(target).items():
        assert not re.search(r"^\s*assert\b", source, re.MULTILINE), name


PUBLIC = {"attention", "kv_positions", "load", "positions", "shard", "unshard"}


def unused(tree: ast.Module) -> set[str]:
    """Functions and classes of a file whose names appear only where they are defined."""
    kinds = ast.FunctionDef, ast.ClassDef
    defined = {
        node.name for node in tree.body if isinstance(node, kinds) and not node.decorator_list
    }
    names = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return defined - set(names) - PUBLIC


def bare(tree: ast.Module) -> list[str]:
    """Functions for users of the file that lack annotations."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [
        f.name
        for f in functions
        if f.name in PUBLIC
        and (f.returns is None or any(a.annotation is None for a in f.args.args))
    ]


# ---- length: blank lines and comments included

LARGE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}


def lines(source: str) -> int:
    return source.count("\n")


@pytest.mark.parametrize(("schedule", "target"), square(CLASSIC, TARGETS, every=2))
def test_the_length_depends_neither_on_ranks_nor_on_tokens(schedule: str, target: str) -> None:
    counted = set()
    for ranks, seq in ((8, 2**13), (16, 2**20)):
        work = rl.Workload(seq=seq, mask=rl.Causal(), **LARGE | {"heads": 64, "kv_heads": 64})
        counted.add(lines(rl.emit(rl.plan(schedule, work, ranks, pass_="both"), target)))
    assert max(counted) - min(counted) <= 3  # the header wraps where numbers grow


@pytest.mark.parametrize("target", TARGETS)
def test_the_length_does_not_depend_on_the_pages_of_a_cache(target: str) -> None:
    counted = set()
    for cached in (2**14, 2**18):
        work = rl.Workload(seq=2**12, kv_seq=cached + 2**12, mask=rl.Causal(), **LARGE)
        counted.add(lines(rl.emit(rl.plan("cache-ring", work, 8, pass_="both"), target)))
    assert max(counted) - min(counted) <= 3


# ---- the texts


@pytest.mark.parametrize("target", TARGETS)
def test_source_reads_like(target: str, golden: Callable[[str], None]) -> None:
    work = rl.Workload(seq=2**18, mask=rl.Causal(), **LARGE)
    source = rl.emit(rl.plan("zigzag", work, 8, pass_="both"), target)
    above, _, rest = source.partition("# ---- Kernels")  # modules that stand in codegen/*/parts
    golden(above + "".join(rest.partition("# ---- The function")[1:]))
