"""Small files that ask for gigabytes are refused before any are taken."""

import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ringloom as rl
from ringloom.csv_rows import records
from ringloom.planner import files
from ringloom.planner.errors import RingloomError
from ringloom.report.facts.recorded import recorded
from ringloom.simulator.network.topology import graph_of

MIB = 1 << 20
WORK = rl.Workload(seq=12, heads=4, head_dim=8)


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Fails where what is done inside has more bytes at a time than that."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def one_run(plan: dict[str, Any]) -> None:
    for name, width in (("rank", []), ("q", []), ("kv", [])):
        plan["steps"][0]["attends"][0][name] = {"runs": [[[0, 0, 2**28 // 3]], *width]}


def many_ranks(plan: dict[str, Any]) -> None:
    plan["ranks"] = 32768


def wide_rectangles(plan: dict[str, Any]) -> None:
    """One row of 2**17 x 2**17 tiles."""
    for name in ("q", "kv"):
        plan["steps"][0]["attends"][0][name] = {"runs": [[[0, 0, 1]]] * 2**17}


def many_blocks(plan: dict[str, Any]) -> None:
    """A table of 50,000 x 50,000 kinds of tiles."""
    plan["ranks"] = 1
    plan["workload"] |= {"seq": 50_000, "kv_seq": 50_000}
    blocks = [[[[at, at + 1, 1]], [0, 4], 0] for at in range(50_000)]
    plan["partition"] = {"q": blocks, "kv": blocks}


def tiny_chunks(plan: dict[str, Any]) -> None:
    plan["workload"] |= {"seq": 2**31 - 1, "kv_seq": 2**31 - 1, "mask": "chunks:1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            one_run,
            "the runs of a plan stand for 268435455 numbers: more than the limit of 16777216",
        ),
        (many_ranks, "32768 ranks x 32768 ranks: more than the limit of 67108864"),
        (wide_rectangles, "tiles in rectangles: more than the limit of 67108864"),
        (many_blocks, "50000 query blocks x 50000 KV blocks: more than the limit of 67108864"),
        (tiny_chunks, "chunks:1 cuts 2147483647 tokens into 2147483647 chunks, more than 1048576"),
    ],
)
def test_a_plan_file_asks_for_no_more_than_it_may(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    document = json.loads(files.dumps(rl.plan("ring", WORK, 4)))
    change(document["plans"][0])
    text = json.dumps(document)
    with at_most(64 * MIB), pytest.raises(rl.PlanError, match=said):
        files.loads(text)


def test_a_plan_of_too_many_ranks_for_its_tables_is_refused_in_python_too() -> None:
    plan = rl.plan("ring", WORK, 4)
    with pytest.raises(rl.PlanError, match="x 32768 ranks exceed the limit of 268435456"):
        rl.Plan(
            **{name: getattr(plan, name) for name in plan.__dataclass_fields__} | {"ranks": 32768}
        )


READERS: dict[str, Callable[[Path], object]] = {
    "plan.json.gz": rl.load,
    "trace.json.gz": recorded,
    "links.json": graph_of,
    "hardware.json": rl.hardware,
}


@pytest.mark.parametrize("value", ["[]", "{}", "7", '"ab"', '{"a": 1}'])
@pytest.mark.parametrize("name", READERS)
def test_json_of_millions_of_values_is_refused_before_they_are_made(
    name: str, value: str, tmp_path: Path
) -> None:
    text = f"[{','.join([value] * (5 * MIB))}]".encode()
    (tmp_path / name).write_bytes(gzip.compress(text, 1) if name.endswith(".gz") else text)
    with at_most(160 * MIB), pytest.raises(RingloomError, match=r"values exceed|larger than"):
        READERS[name](tmp_path / name)


def test_a_gzip_that_unpacks_to_gigabytes_is_read_no_further_than_64_mebibytes(
    tmp_path: Path,
) -> None:
    (tmp_path / "plan.json.gz").write_bytes(gzip.compress(b"[]," * (90 * MIB), 1))
    for read in (rl.load, recorded):
        with at_most(160 * MIB), pytest.raises(RingloomError, match="larger than 67108864 bytes"):
            read(tmp_path / "plan.json.gz")


def test_a_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = rl.plan("ring", rl.Workload(seq=64, heads=4), 64)
    rl.save(plan, tmp_path / "plan.json")
    with pytest.raises(rl.PlanError, match="values exceed the limit of 255"):
        files.loads((tmp_path / "plan.json").read_text(), 64 * 64 - 1)
    monkeypatch.setenv("RINGLOOM_LARGEST_FILE", "1k")
    with pytest.raises(RingloomError, match="larger than 1024 bytes: set RINGLOOM_LARGEST_FILE"):
        rl.load(tmp_path / "plan.json")
    assert rl.load(tmp_path / "plan.json", largest=MIB) == plan
    monkeypatch.setenv("RINGLOOM_LARGEST_FILE", "1M")
    assert rl.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'a,' * 100_000}b\n{'1' * 9}\n", "100001 columns; the limit is"),
        (f"a,b\n{'1' * 3}\n" + "1\n" * 200_000, "too many rows; the limit is"),
    ],
)
def test_a_table_has_so_many_columns_and_rows(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with at_most(64 * MIB), pytest.raises(RingloomError, match=said) as refused:
        records(tmp_path / "rows.csv")
    assert "RINGLOOM_LARGEST_FILE" not in str(refused.value)  # which would not help
