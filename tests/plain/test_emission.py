"""Emission: only verified plans, whatever they are called; `rl.compile`; the header."""

import ast
import json
import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ringloom as rl
from command_line import CommandLine
from repository import ROOT
from ringloom import codegen
from ringloom.cli import cli
from ringloom.codegen.frame.formatting import format_source
from ringloom.codegen.frame.header import plan_literal
from ringloom.codegen.programs import program_of
from ringloom.compiling import cache_folder
from ringloom.planner.files.digest import digest
from ringloom.planner.ir import Plan
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.plans import Plans
from ringloom.planner.verify import ensure_verified, mark_verified

WORK = rl.Workload(seq=64, heads=4, kv_heads=2, head_dim=8, dtype="float64")
MESSAGE = "step 1: rank 1 sends KV to rank 2, but block 0 never arrives there"


def wrong() -> Plan:
    """A plan whose first messages are missing, made of one that was verified."""
    plan = rl.plan("ring", WORK, 4)
    return replace(plan, steps=(replace(plan.steps[0], moves=()), *plan.steps[1:]))


def test_a_wrong_plan_is_refused_with_the_sentence_of_the_verifier() -> None:
    for refuse in (
        lambda: rl.emit(wrong(), "torch"),
        lambda: rl.emit((wrong(), rl.plan("ring", WORK, 4, pass_="backward")), "jax"),
        lambda: rl.mask_tables(wrong(), "torch"),
        lambda: rl.compile(wrong(), "torch"),
        lambda: rl.simulate(wrong(), "h100"),
        lambda: ensure_verified(wrong()),
    ):
        with pytest.raises(rl.PlanError, match=MESSAGE):
            refuse()


def test_a_plan_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, asked = rl.plan("zigzag", WORK, 4), list[Plan]()
    monkeypatch.setattr(
        "ringloom.planner.verify.verify", lambda p: asked.append(p) or mark_verified(p)
    )
    ensure_verified(plan)
    rl.simulate(plan, "h100")
    assert asked == []
    copy = replace(plan, name="copy")
    ensure_verified(copy)
    ensure_verified(Plans(copy))
    assert asked == [copy]


@pytest.mark.parametrize("target", ["torch", "jax"])
@pytest.mark.parametrize("name", ["zigzag", "usp:ulysses=2"])  # whose backward pass holds copies
def test_loops_are_expanded_once(monkeypatch: pytest.MonkeyPatch, name: str, target: str) -> None:
    pair, run, steps = rl.plan(name, WORK, 4, pass_="both"), Expansion.step, list[int]()
    monkeypatch.setattr(Expansion, "step", lambda self, t: steps.append(t) or run(self, t))
    assert "(regular)" in rl.emit(pair, target)
    assert steps == [t for plan in pair for t in range(len(plan.steps))]


def test_a_program_that_is_given_tables_is_the_same_for_every_mask_and_length() -> None:
    """And says so: neither heads that it does not take, nor a plan that it is not made of."""
    masks = rl.Full(), rl.Causal(), rl.Window(9)
    works = [
        replace(WORK, mask=m, seq=n, kv_seq=n) for m, n in zip(masks, (64, 32, 96), strict=True)
    ]
    programs = {rl.emit(rl.plan("ring", work, 4), "torch", dynamic=True) for work in works}
    (text,) = programs
    header = text.split('"""')[1].replace("\n", " ")
    assert "any batch size and float dtype, and any plan for these ranks and heads" in header
    assert "from plan" not in header


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("fortran", {}, "unknown target 'fortran'"),
        ("jax", {"platform": "abacus"}, "unknown platform 'abacus'"),
        ("torch", {"platform": "gpu"}, "platform=gpu is only available for JAX programs"),
        ("jax", {"platform": "gpu", "dynamic": True}, "platform=gpu is only available for JAX"),
        ("jax", {"max_calls": 9}, "max_calls is only available for dynamic JAX programs"),
        ("torch", {"max_calls": 9, "dynamic": True}, "max_calls is only available for dynamic JAX"),
    ],
)
def test_unknown_targets_and_idle_options_are_refused(
    target: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(rl.PlanError, match=said):
        rl.emit(rl.plan("zigzag", WORK, 4), target, **options)


def test_tables_of_another_mask_than_the_plan_s_are_those_of_jax_alone() -> None:
    full = rl.plan("zigzag", replace(WORK, mask=rl.Full()), 4, pass_="both")
    with pytest.raises(rl.PlanError, match="plans for torch have their own mask: plan with mask"):
        rl.mask_tables(full, "torch", mask=rl.Causal())
    own, causal = (rl.mask_tables(full, "jax", mask=mask) for mask in (None, rl.Causal()))
    assert own.keys() == causal.keys()
    assert any(not np.array_equal(own[name], causal[name]) for name in own)


def test_a_backward_plan_alone_and_pairs_of_strangers_are_refused() -> None:
    forward, backward = rl.plan("zigzag", WORK, 4, pass_="both")
    with pytest.raises(rl.PlanError, match="needs a forward plan"):
        rl.emit(backward, "torch")
    other = rl.plan("ring", WORK, 4, pass_="backward")
    with pytest.raises(rl.PlanError, match="need the same partition"):
        rl.emit((forward, other), "torch")


@pytest.mark.parametrize("target", ["torch", "jax"])
@pytest.mark.parametrize("name", ["zigzag", "balanced"])
def test_a_name_changes_the_header_and_plan_and_nothing_else(target: str, name: str) -> None:
    plans = rl.plan(name, WORK, 4, pass_="both")
    renamed = tuple(replace(plan, name='my "own" \\ plan') for plan in plans)
    one, other = (ast.parse(rl.emit(p, target)) for p in (plans, renamed))
    changed = [
        ast.unparse(a)
        for a, b in zip(one.body, other.body, strict=True)
        if ast.dump(a) != ast.dump(b)
    ]
    assert len(changed) == 1
    assert changed[0].startswith("PLAN = ")
    assert "my own  plan" in ast.unparse(other)


def test_a_digest_tells_plans_apart_and_not_their_names(tmp_path: Path) -> None:
    plan = rl.plan("zigzag", WORK, 4)
    rl.save(plan, tmp_path / "plan.json")
    same = [plan, replace(plan, name="other"), rl.load(tmp_path / "plan.json")]
    assert len({digest((p,)) for p in same if isinstance(p, Plan)}) == 1
    first = plan.steps[0]
    others = [
        replace(plan, steps=(replace(first, moves=()), *plan.steps[1:])),
        replace(plan, steps=plan.steps[:-1]),
        rl.plan("zigzag", replace(WORK, seq=128, kv_seq=128), 4),
        rl.plan("ring", WORK, 4),
        rl.plan("zigzag", WORK, 4, pass_="backward"),
    ]
    assert len({digest((p,)) for p in [plan, *others]}) == 6


def test_the_header_says_the_versions_that_kernels_ran_with() -> None:
    """As installed here, and as recorded where a GPU was."""
    held = dict(re.findall(r"^(torch|jax)==(.*)$", (ROOT / "constraints.txt").read_text(), re.M))
    recorded = [json.loads(p.read_text()) for p in (ROOT / "benchmarks/results").glob("*.json")]
    assert len(recorded) == 2
    for target in ("torch", "jax"):
        text = rl.emit(rl.plan("zigzag", WORK, 4, pass_="both"), target)
        header = " ".join(text.split('"""')[1].split())
        assert f"with {target} {held[target]}" in header
        assert all(f"with {target} {x['versions'][target]}" in header for x in recorded)
        assert all(x["chip"].split()[1] in header for x in recorded)
    text = rl.emit(rl.plan("zigzag", WORK, 4), "jax", platform="cpu")
    assert "H100" not in text


def test_the_header_has_the_command_that_makes_the_file_again(
    ringloom: CommandLine, tmp_path: Path
) -> None:
    words = "emit torch zigzag --ranks 4 --seq 64 --heads 4 --kv-heads 2 --head-dim 8"
    command = [*words.split(), "--mask", "causal & (full | global:3)"]
    ringloom(*command, "-o", str(tmp_path / "one.py"))
    text = (tmp_path / "one.py").read_text()
    quoted = f"ringloom {words} --mask 'causal & (full | global:3)'"
    assert quoted in re.sub(r" \\\n +", " ", text)
    path = str(tmp_path / "plan.json")
    ringloom("plan", *words.split()[2:], "--pass", "both", "-o", path)
    assert "\n    ringloom emit torch plan.json\n" in ringloom("emit", "torch", path)


def test_the_header_of_a_program_from_python_has_the_call_that_makes_it_again() -> None:
    plan = rl.plan("zigzag", WORK, 4)
    assert "\n    rl.emit(plan, 'torch')\n" in rl.emit(plan, "torch")
    plan = rl.plan("zigzag", replace(WORK, mask=rl.Full()), 4)
    source = rl.emit(plan, "jax", dynamic=True, max_calls=99)
    call = next(line for line in source.splitlines() if line.startswith("    rl.emit("))
    assert call == "    rl.emit(plan, 'jax', dynamic=True, max_calls=99)"
    assert eval(call.strip(), {"rl": rl, "plan": plan}) == source
    assert "plan.json" not in source


def test_the_header_says_what_travels() -> None:
    """Of broadcasts it said that nothing does."""
    for name in rl.SCHEDULES:
        assert "No communication" not in rl.emit(rl.plan(name, WORK, 4), "torch"), name
    assert "\nKeys and values broadcast.\n" in rl.emit(rl.plan("broadcast", WORK, 4), "torch")


def test_the_header_says_how_much_the_self_check_computes_and_why_there_are_no_loops() -> None:
    fixed = replace(WORK, seq=6000, kv_seq=6000, mask=rl.Documents((1000, 5000)))
    for work, name, said in (
        (WORK, "ring", "gradients with dense attention on 64 tokens."),
        (replace(WORK, seq=1), "pass-q", "dense attention on 1 token."),
        (fixed, "zigzag", "dense attention on 6000 tokens, which is slow on CPUs."),
        (
            WORK,
            "tree",
            "(as tables, not loops: a rank reads an old value of A after a new one came",
        ),
    ):
        text = rl.emit(rl.plan(name, work, 4, pass_="both"), "torch")
        assert said in " ".join(text.split('"""')[1].split())


def test_a_command_is_broken_between_its_words(ringloom: CommandLine) -> None:
    mask = "causal & (full | global:3) & (full | global:5)"
    words = shlex.split("emit torch ring --ranks 2 --seq 32 --head-dim 8 --mask")
    text = ringloom(*words, mask)
    (command,) = re.findall(r"^    (ringloom (?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert "\\\n" in command
    assert shlex.split(command.replace("\\\n", " ")) == ["ringloom", *words, mask]
    long = " | ".join([mask] * 3)
    assert "--mask MASK  # MASK is PLAN['mask']" in ringloom(*words, long)


def test_commands_of_another_program_are_told_as_they_were_given() -> None:
    words = "emit torch ring --ranks 2 --seq 32 --heads 2 --head-dim 8"
    done = CliRunner().invoke(cli, shlex.split(words))
    assert f"    ringloom {words}  " in re.sub(r" \\\n +", " ", done.output).replace("\n", " ")


LONG = rl.Documents((1,) * 300 + (724,))


@pytest.mark.parametrize("mask", [rl.Causal(), LONG])
def test_plan_is_a_literal(mask: rl.Mask) -> None:
    work = rl.Workload(seq=1024, heads=2, mask=mask)
    text = format_source(plan_literal(program_of(rl.plan("ring", work, 4), "torch")))
    assert max(map(len, text.splitlines())) <= 100
    plan = ast.literal_eval(text.removeprefix("PLAN = "))
    sizes = {"seq": 1024, "kv_seq": 1024, "heads": 2, "kv_heads": 2, "head_dim": 128}
    sizes |= {"scale": 128**-0.5, "dtype": "bfloat16"}
    assert plan == {"name": "ring", "ranks": 4, **sizes, "mask": str(mask)}


def test_compiling_is_emitting_and_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plans = rl.plan("zigzag", WORK, 4, pass_="both")
    program = rl.compile(plans, "torch")
    path = Path(str(program.__file__))
    assert path.parent == cache_folder() == tmp_path / "ringloom"
    assert callable(program.attention)
    assert program.PLAN["name"] == "zigzag"
    assert path.read_text() == rl.emit(plans, "torch")
    assert rl.compile(plans, "torch") is program
    for broken in (b"raise SystemExit", b"", b"\xff"):  # as a full disk or another program left it
        del sys.modules[program.__name__]
        path.write_bytes(broken)
        again = rl.compile(plans, "torch")
        assert again is not program
        assert again.PLAN == program.PLAN
    monkeypatch.setattr("ringloom.compiling.emit", lambda *_, **__: "raise SystemExit")
    before = {*sys.modules}
    with pytest.raises(SystemExit):
        rl.compile(plans, "torch")
    assert {*sys.modules} == before


def test_a_relative_cache_folder_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    usual = cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert cache_folder() == usual


def test_a_user_without_a_home_is_told_which_folder_to_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a number that no user has
    with pytest.raises(rl.RingloomError, match=r"no cache directory: set XDG_CACHE_HOME"):
        cache_folder()


def test_a_kept_file_is_always_whole_as_programs_of_other_processes_read_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("ringloom.compiling.emit", lambda *_, **__: "attention = 1\n")
    one = rl.plan("ring", WORK, 3)
    program = rl.compile(one, "torch")
    path, opened = Path(str(program.__file__)), tmp_path / "opened"
    path.write_text("attention = 2")
    opened.hardlink_to(path)  # what a process that has it open reads
    del sys.modules[program.__name__]
    rl.compile(one, "torch")
    assert (path.read_text(), opened.read_text()) == ("attention = 1\n", "attention = 2")
    assert [*path.parent.iterdir()] == [path]
    number = path.stat().st_ino
    del sys.modules[program.__name__]
    rl.compile(one, "torch")
    assert path.stat().st_ino == number


def test_a_thread_does_not_get_a_program_that_another_one_is_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = "import time\n\ntime.sleep(0.2)\nattention = 1\n"
    monkeypatch.setattr("ringloom.compiling.emit", lambda *_, **__: text)
    one = rl.plan("ring", WORK, 3)
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(lambda _: rl.compile(one, "torch").attention, range(2))] == [1, 1]


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_a_program_of_one_rank_takes_any_length_too(target: str) -> None:
    one = program_of(rl.plan("ring", rl.Workload(seq=64, heads=4), 1, pass_="both"), target)
    assert (one.layout.multiple, one.any_length) == (1, True)


def test_what_codegen_is_asked_for_has_no_name_of_a_module_in_it() -> None:
    """Importing such a module would put it in the place of the function."""
    folder = Path(codegen.__file__).parent
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = rooms | {path.stem for path in folder.glob("*.py")}
    assert {"torch", "frame"} < modules
    assert not modules & {*codegen.__all__}
