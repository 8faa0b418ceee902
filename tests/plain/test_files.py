"""Plan files: what is written is what is read, and nothing else is believed."""

import errno
import gzip
import json
import os
import re
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from ringloom.planner import disk, files
from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.files import runs
from ringloom.planner.ir import InitialCopy
from ringloom.planner.plans import Plans
from ringloom.sweeps import store
from strategies import masks

WORK = rl.Workload(seq=12, heads=4, kv_heads=2, head_dim=8, mask=rl.Causal(), scale=0.25)
PLAN = rl.plan("striped", WORK, 3)


@given(
    st.data(),
    st.sampled_from([*rl.SCHEDULES, "allgather:keep=1"]),
    st.sampled_from(["forward", "backward", "both"]),
    st.integers(1, 5),
)
def test_a_plan_comes_back_from_its_json(
    data: st.DataObject, name: str, pass_: str, P: int
) -> None:
    work = rl.Workload(seq=20, kv_seq=23, heads=4, kv_heads=2, mask=data.draw(masks(20, 23)))
    plan = rl.plan(name, work, P, pass_=pass_)
    assert files.loads(files.dumps(plan)) == plan


@pytest.mark.parametrize("more", [{"v_head_dim": 5}, {"sinks": True}])
def test_the_version_rises_only_where_older_readers_would_be_wrong(more: dict[str, Any]) -> None:
    assert json.loads(files.dumps(PLAN))["ringloom"] == 2
    assert "sinks" not in files.dumps(PLAN)
    plan = rl.plan("striped", replace(WORK, **more), 3)
    text = files.dumps(plan)
    assert json.loads(text)["ringloom"] == 3
    assert files.loads(text) == plan


@pytest.mark.parametrize("name", ["ring", "zigzag", "balanced", "burst", "allgather"])
def test_columns_of_many_rows_are_stored_as_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a schedule made by rule grows with its steps, not with its rows."""
    work = rl.Workload(seq=2**10, heads=4, mask=rl.Causal())
    plans = rl.plan(name, work, 96, pass_="both")
    text = files.dumps(plans)
    assert json.loads(text)["ringloom"] == 4
    assert files.loads(text) == plans
    monkeypatch.setattr(runs, "SHORTEST_COLUMN", 1 << 20)
    by_rows = files.dumps(plans)
    assert files.loads(by_rows) == plans
    assert len(text) < len(by_rows) / 3


@given(st.lists(st.tuples(st.integers(-1, 99), st.integers(-3, 3), st.integers(1, 40))))
def test_a_column_comes_back_from_its_runs(parts: list[tuple[int, int, int]]) -> None:
    pieces = [first + step * np.arange(count) for first, step, count in parts]
    column = np.concatenate([np.zeros(0, int), *pieces]).clip(-1).astype(np.int32)
    result = runs.runs_of(column)
    if result is not None:
        assert runs.expand_runs(result).tolist() == column.tolist()
        assert runs.count_numbers(result) == len(column) > 3 * len(result) - 4
    assert result is not None or len(column) < max(runs.SHORTEST_COLUMN, 3 * 3 * len(parts))


@pytest.mark.parametrize("name", ["plan.json", "plan.json.gz"])
def test_a_file_may_be_compressed_and_is_the_same_each_time(tmp_path: Path, name: str) -> None:
    rl.save(PLAN, tmp_path / name)
    rl.save(PLAN, tmp_path / f"again-{name}")
    assert rl.load(tmp_path / name) == PLAN
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGLOOM_LARGEST_FILE", "1000")
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * 10_000))
    with pytest.raises(RingloomError, match="the file is larger than 1000 bytes: set RINGLOOM_L"):
        rl.load(bomb)
    with pytest.raises(PlanError, match="not a plan file"):
        rl.load(bomb, largest=10_000)
    monkeypatch.setenv("RINGLOOM_LARGEST_FILE", "much")
    with pytest.raises(RingloomError, match="must be a size such as 256M, not 'much'"):
        rl.load(bomb)


def corrupted(path: tuple[Any, ...], value: Any) -> str:
    document = json.loads(files.dumps(PLAN))
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document)


FIRST = ("plans", 0)
STEP = (*FIRST, "steps", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a plan file"),
        ("[" * 100_000, "not a plan file"),
        ("[1, 2]", "no 'ringloom' version"),
        ('{"ringloom": 99}', "version 99 is not supported, only 1 to 4"),
        ('{"ringloom": true}', "version True is not supported, only 1 to 4"),
        ('{"ringloom": 2.0}', "version 2.0 is not supported, only 1 to 4"),
        ('{"ringloom": 1}', "missing key 'plans'"),
        ('{"ringloom": 1, "plans": [], "plans": [7]}', "duplicate key 'plans' in an object"),
        ('{"ringloom": 1, "plans": []}', "not 0 plans"),
        ('{"ringloom": 1, "plans": [7]}', "a plan must be an object, not 7"),
        (corrupted((*FIRST, "steps"), KeyError), "missing key 'steps'"),
        (corrupted((*FIRST, "ranks"), 2.5), "ranks must be a whole number"),
        (corrupted((*FIRST, "ranks"), True), "ranks must be a whole number"),
        (corrupted((*FIRST, "ranks"), 10**12), "more than the"),
        (corrupted((*FIRST, "name"), 7), "name must be a short text"),
        (corrupted((*FIRST, "pass"), "both"), "forward or backward"),
        (corrupted((*FIRST, "workload", "mask"), "documents:5,5"), "10"),
        (corrupted((*FIRST, "workload", "mask"), "documents@/etc/passwd"), "must be text"),
        (corrupted((*FIRST, "workload", "seq"), 10**30), "seq must be between"),
        (corrupted((*FIRST, "workload", "seq"), "12"), "seq must be a whole number"),
        (corrupted((*FIRST, "workload", "dropout"), 0.1), "unknown workload field 'dropout'"),
        (
            corrupted((*FIRST, "partition", "q", 0), [[[0, 4]], [0, 4], 0]),
            "more than one block|no block",
        ),
        (corrupted((*FIRST, "partition", "q", 0), [[[0, 4, 0]], [0, 4], 0]), "corrupt plan file"),
        (
            corrupted((*FIRST, "partition", "q", 0), [[[0, 10**40, 1]], [0, 4], 0]),
            "corrupt plan file|beyond",
        ),
        (corrupted((*STEP, "moves", 0, "tensors"), ["V"]), "unknown tensor 'V'"),
        (corrupted((*STEP, "moves", 0, "blocks"), [[0], [1, 2]]), "corrupt plan file"),
        (corrupted((*STEP, "moves", 0, "src"), [0, 1, "two"]), "whole numbers|corrupt"),
        (corrupted((*STEP, "moves", 0, "dst"), [0, 1, 0.5]), "whole numbers"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": [[[0, 1, 3], 4]]}), "a run must be"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": [[[0, 1, True]]]}), "a run must be"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": [[[0, 1, 0]]]}), "is outside -1"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": [[[0, -1, 3]]]}), "is outside -1"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": [[[0, 10**30, 3]]]}), "is outside -1"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": 5}), "runs must be a list"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": []}), "corrupt plan file"),
        (corrupted((*STEP, "moves", 0, "src"), {"run": []}), "missing key 'runs'"),
        (corrupted((*STEP, "moves", 0, "src"), {"runs": [[[0, 1, 2]]]}), "2 sources"),
        (corrupted((*STEP, "moves", 0, "tensors"), {"runs": [[[0, 1, 3]]]}), "must be a list"),
        (
            corrupted((*STEP, "moves", 0, "blocks"), {"runs": [[[0, 1, 3]], [[0, 1, 2]]]}),
            "corrupt plan file",
        ),
        (
            corrupted((*STEP, "attends", 0, "q"), {"runs": [[[0, 0, 2**31]]]}),
            "stand for 2147483648 numbers: more than the limit of 16777216",
        ),
        (
            corrupted((*STEP, "moves", 0, "dst"), {"runs": [[[0, 0, 10]]]}),
            "3 sources but 10 destinations",
        ),
        (corrupted((*STEP, "moves"), []), "never arrives there"),
        (corrupted((*STEP, "attends"), []), "never attends"),
        (corrupted((*FIRST, "buffers"), [["KV", 0]]), "needs 2 slots|needs 1 slots"),
    ],
)
def test_a_corrupt_file_says_in_one_line_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as refused:
        files.loads(text)
    assert "\n" not in str(refused.value)


def test_a_plan_of_more_numbers_than_memory_holds_is_refused_before_any_is_made() -> None:
    document = json.loads(files.dumps(PLAN))
    first = document["plans"][0]
    first["ranks"] = 2**22
    first["steps"][0]["moves"][0]["blocks"] = {"runs": [[[0, 0, 3 * 2**22]]] * 30}
    with pytest.raises(
        PlanError,
        match="stand for 377487360 numbers: more than the limit of 16777216",
    ):
        files.loads(json.dumps(document))


@given(st.data())
def test_no_corruption_gets_past_the_checks_as_anything_but_a_plan_error(
    data: st.DataObject,
) -> None:
    text = files.dumps(PLAN)
    at = data.draw(st.integers(0, len(text) - 1))
    broken = text[:at] + data.draw(st.sampled_from('0179-.,]}[{" x')) + text[at + 1 :]
    try:
        plan = files.loads(broken)
    except PlanError:
        return
    rl.verify(plan)


def test_a_pair_must_be_of_one_workload() -> None:
    other = rl.plan("striped", rl.Workload(seq=24, heads=4), 3, pass_="backward")
    with pytest.raises(PlanError, match="both plans need the same workload"):
        files.loads(together(PLAN, other))
    with pytest.raises(PlanError, match=r"not \('forward', 'forward'\)"):
        files.loads(together(PLAN, PLAN))
    with pytest.raises(PlanError, match="not 3 plans"):
        files.loads(together(PLAN, other, PLAN))


def together(*plans: rl.Plan) -> str:
    """The text of a file of plans that need not be a pair."""
    documents = [json.loads(files.dumps(plan)) for plan in plans]
    return json.dumps(documents[0] | {"plans": [d["plans"][0] for d in documents]})


@pytest.mark.parametrize("name", ["ring", "ulysses", "ulysses:keep=0", "allgather:keep=1"])
def test_files_of_version_1_are_read(name: str) -> None:
    plan = rl.plan(name, replace(WORK, seq=24, kv_seq=24), 3, pass_="both")
    older = json.dumps(json.loads(files.dumps(plan)) | {"ringloom": 1})  # rules were only loosened
    assert files.loads(older) == plan


def test_a_pair_whose_backward_pass_starts_from_what_was_not_left_is_refused() -> None:
    forward, backward = rl.plan("ulysses", WORK, 3, pass_="both")
    assert files.loads(files.dumps((forward, backward))) == Plans(forward, backward)
    queries = backward.start[0]
    other = InitialCopy(queries.tensors, queries.blocks, (queries.rank + 1) % 3)
    for start in ((other, *backward.start), (InitialCopy(("DOUT",), [[0]], [1]), *backward.start)):
        with pytest.raises(PlanError, match=r"does not leave there|a second time"):
            files.loads(files.dumps((forward, replace(backward, start=start))))
    contiguous = rl.plan("ring", WORK, 3)
    with pytest.raises(PlanError, match="need the same partition"):
        files.loads(files.dumps((contiguous, backward)))


def test_a_file_that_is_absent_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RingloomError, match=r"nowhere.json: No such file"):
        rl.load(tmp_path / "nowhere.json")
    with pytest.raises(RingloomError, match=r"cannot write .*: Is a directory"):
        rl.save(PLAN, tmp_path)
    (tmp_path / "noise.json").write_bytes(bytes(range(256)))
    with pytest.raises(RingloomError, match=r"noise.json: .* can't decode"):
        rl.load(tmp_path / "noise.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(files.dumps(PLAN).encode())[:-40])
    with pytest.raises(RingloomError, match=r"cut.json.gz: Compressed file ended"):
        rl.load(tmp_path / "cut.json.gz")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Has no file grow beyond `size` bytes: what writes more fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_on_a_full_disk_a_file_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for before in ([], [path]):
        with full_disk(100), pytest.raises(RingloomError, match=f"cannot write {path}: File too"):
            rl.save(PLAN, path)
        assert [*tmp_path.iterdir()] == before
        path.write_text("before")
    assert path.read_text() == "before"
    with (
        full_disk(20),
        pytest.raises(RingloomError, match=r"cannot write .*sweep\.jsonl: File too"),
        store.open_store(tmp_path / "sweep", "0" * 64),
    ):
        pass


def test_a_long_error_of_a_file_ends_after_a_word() -> None:
    with pytest.raises(RingloomError) as refused:
        disk.read(__file__, lambda _: {}["seven " * 400], "here")
    assert re.fullmatch(r"here: '(seven ){50,}\.\.\.", str(refused.value))


def test_links_modes_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    kept, link, pipe = (tmp_path / name for name in ("kept.json", "link.json", "pipe"))
    kept.write_text("{}")
    kept.chmod(0o640)
    link.symlink_to(kept.name)
    rl.save(PLAN, link)
    assert link.is_symlink()
    assert rl.load(kept) == PLAN
    assert kept.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        content = pool.submit(pipe.read_text)
        rl.save(PLAN, pipe)
        assert files.loads(content.result()) == PLAN
    rl.save(PLAN, "/dev/null")
    assert not Path("/dev/null").is_file()


def test_what_no_new_file_can_stand_for_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    if os.geteuid() == 0:  # others cannot give files away
        os.chown(path, 1, 1)
    was = path.stat()
    rl.save(PLAN, path)
    assert [path.stat()[n] for n in (0, 4, 5)] == [was[n] for n in (0, 4, 5)]

    def busy(*names: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    path.unlink()
    path.write_text("{}")
    monkeypatch.setattr(os, "replace", busy)  # as a mount answers
    rl.save(PLAN, path)
    assert rl.load(path) == PLAN
    assert [*tmp_path.iterdir()] == [path]
