"""READERS   by name: how a case is made, how it is read, and the law of what is accepted."""

import csv
import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutations, seeds
from fuzz.commands import run_command
from ringloom.cli.hardware.fit import _read as read_fit
from ringloom.csv_rows import records
from ringloom.planner import files, given
from ringloom.planner.errors import RingloomError
from ringloom.planner.masks import Mask, parse
from ringloom.planner.planning import find_schedule
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from ringloom.report.facts.recorded import Recorded, recorded
from ringloom.reproduce.measured import measured
from ringloom.reproduce.papers import striped
from ringloom.runtimes.validation import check
from ringloom.simulator.hardware import Hardware, hardware, load
from ringloom.simulator.hardware.measured import as_toml
from ringloom.simulator.network.topology import graph_of, topology
from ringloom.simulator.scenario import Scenario, scenario_file, text_of, value_of
from ringloom.sweeps.grid import Grid, read_grid

Made = tuple[str, bytes] | str | list[str]  # a file by its ending, a text, the words of a command
FEW = 4096  # numbers of a plan that is run
QUERIES, KEYS = range(-1, 8), range(8)


@dataclass(frozen=True)
class Reader:
    """`read(made, folder)` returns what was accepted, or raises RingloomError."""

    make: Callable[[Random], Made]
    read: Callable[[Any, Path], Any]
    law: Callable[[Any, Any], None]


def document(choices: Callable[[], list[Any]], *endings: str) -> Callable[[Random], Made]:
    """Makes files of documents that were changed once, twice, or not at all."""

    def make(random: Random) -> Made:
        made, ending = random.choice(choices()), random.choice(endings)
        for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
            made = mutations.changed(made, random) if isinstance(made, dict | list) else made
        written = mutations.as_toml(made) if ending == ".toml" else mutations.as_json(made)
        raw = mutations.content(written, random)
        return ending, mutations.packed(raw, random) if ending.endswith(".gz") else raw

    return make


def a_text(choices: list[str]) -> Callable[[Random], Made]:
    def make(random: Random) -> Made:
        if not random.randrange(8):
            return random.choice(mutations.TEXTS)
        return mutations.text(random.choice(choices), random)

    return make


def from_file(read: Callable[[Path], Any]) -> Callable[[Any, Path], Any]:
    """Reads a case from the file that it makes."""

    def reading(made: tuple[str, bytes], folder: Path) -> Any:
        path = folder / f"case{made[0]}"
        path.write_bytes(made[1])
        return read(path)

    return reading


def parsed(made: tuple[str, bytes]) -> Any:
    """Reads a file as the standard library does."""
    text = made[1].decode()
    return json.loads(text) if made[0] == ".json" else tomllib.loads(text)


# ---- laws


def law_of_plans(made: tuple[str, bytes], read: Any) -> None:
    """An accepted plan is written and read as itself, and computes dense attention."""
    verify(read)
    assert files.loads(files.dumps(read)) == read
    plans = Plans.of(read)
    work = plans.workload
    size = max(work.seq, work.kv_seq) * work.heads * work.batch * (work.head_dim + work.v_head_dim)
    if size <= FEW and all(plan.ranks <= 64 for plan in plans) and work.scale in (None, 1):
        assert check(read).exact


def law_of_hardware(made: tuple[str, bytes], read: Hardware) -> None:
    """The constants are those of the file, and the file written of them reads as the same."""
    tables = parsed(made)
    own = tables.get("kernels", {}).get(read.kernel, {})  # the constants of its kernel
    for key, constant in read.constants.items():
        section, name = key.split(".")
        said = own if section == "attention" and name in own else tables[section]
        assert constant.value == said[name]["value"]
        assert math.isfinite(constant.value)
    path = Path("again.toml")
    path.write_text(as_toml(read))
    again = load(path)
    assert (again.name, again.constants) == (read.name, read.constants)


def law_of_scenarios(made: tuple[str, bytes], read: Scenario) -> None:
    """Each value reads back from its text, and the file says the same."""
    for name in ("speeds", "links", "placement", "share", "launch", "buffers"):
        value = getattr(read, name)
        if value is None or (name == "speeds" and not isinstance(value, dict)):
            continue
        again = value_of(name, text_of(value))
        assert again == (list(value) if name == "placement" else value), name
    assert set(parsed(made)) <= set(vars(read))
    assert all(map(str.isprintable, [*read.describe(), repr(read)]))
    for use in (lambda: read.speed(4), lambda: read.machine(hardware("h100"))):
        refused_or_read(use)
    if isinstance(read.topology, str | None):
        refused_or_read(lambda: read.routes(hardware("h100"), 4).path(0, 1))


def law_of_topologies(made: tuple[str, bytes], read: Any) -> None:
    """There is a link each way between two places that the file names, and no other."""
    rows = parsed(made)["links"]
    assert {*read.edges} == {(a, b) for x, y, *_ in rows for a, b in ((x, y), (y, x))}
    for a, b, bandwidth, *_ in rows:
        assert read.edges[a, b]["bandwidth"] == read.edges[b, a]["bandwidth"] == bandwidth
    refused_or_read(lambda: topology(read, "h100", 4))


def law_of_traces(made: tuple[str, bytes], read: Recorded) -> None:
    """Bars lie within the run and are as many as the file has, but for what is received."""
    rows = [e for e in parsed((".json", made[1]))["traceEvents"] if isinstance(e, dict)]
    slices = [e for e in rows if e.get("ph") == "X"]
    assert len(read.bars) == sum(not 300 <= e["tid"] < 400 for e in slices)
    assert read.ranks == max(e["pid"] for e in slices) + 1
    assert all(0 <= bar.start <= bar.end <= read.makespan < math.inf for bar in read.bars)
    assert all(bar.name.isprintable() for bar in read.bars)


def law_of_masks(made: Made, read: Mask) -> None:
    """The text of a mask reads back as the mask, and pairs are those that are allowed."""
    text = str(read)
    assert parse(text) == read
    assert text.isprintable()
    try:
        work = Workload(len(QUERIES), kv_seq=len(KEYS), mask=read)
    except RingloomError:
        return
    assert work.mask.pairs((QUERIES,), (KEYS,)) == read.allowed(QUERIES, KEYS).sum()


def law_of_grids(made: tuple[str, bytes], read: Grid) -> None:
    """Points are the combinations of what the file lists, the last key changing fastest."""
    table = parsed(made)
    lists = {k: [*v] if isinstance(v, list | dict) else [v] for k, v in table.items()}
    assert len(read) == math.prod(map(len, lists.values()))
    for number, at in ((0, 0), (len(read) - 1, -1)):
        labels, _ = read.point(number)
        for key, label in labels.items():
            listed = lists[key][at]
            assert label == (
                given.parse_tokens(listed)
                if isinstance(label, int) and isinstance(listed, str)
                else listed
            )
    assert len(read.digest) == 64


def law_of_tables(made: tuple[str, bytes], read: list[dict[str, str]]) -> None:
    """Rows are those of the standard library, blanks stripped."""
    text = made[1].decode("utf-8-sig")
    names, *rows = list(csv.reader(StringIO(text, newline="")))
    assert [name.strip().lower() for name in names] == [*read[0]]
    for row, record in zip(filter(None, rows), read, strict=True):
        assert [cell.strip() for cell in row if cell.strip()] == [*filter(None, record.values())]


def law_of_schedules(made: str, read: tuple[Any, dict[str, Any]]) -> None:
    recipe, parameters = read
    again = ":".join([recipe.name, *(f"{key}={value}" for key, value in parameters.items())])
    assert find_schedule(again) == read


def law_of_lengths(made: str, read: int) -> None:
    assert given.parse_tokens(str(read)) == read >= 0


def refused_or_read(use: Callable[[], Any]) -> None:
    """Calls what may refuse, in one plain line."""
    said = ""
    try:
        use()
    except RingloomError as error:
        said = str(error)
    assert said.isprintable(), repr(said)


# ---- readers of several files and words


def mask_file(random: Random) -> Made:
    kind, seed = random.choice(seeds.FILES)
    _, raw = document(lambda: [seed], ".json")(random)
    assert isinstance(raw, bytes)
    if kind == "documents" and random.randrange(4):
        raw = raw.replace(b"[", b"").replace(b"]", b"")
    return f".{kind}", raw


def read_mask_file(path: Path) -> Mask:
    return parse(f"{path.suffix[1:]}@{path}")


def table(random: Random) -> Made:
    made = random.choice(seeds.TABLES)
    for _ in range(random.choice([0, 1, 1, 2])):
        made = mutations.changed(made, random)
    rows = (
        [row if isinstance(row, list) else [row] for row in made] if isinstance(made, list) else []
    )
    lines = (",".join(map(str, row)) for row in rows)
    return ".csv", mutations.content("\n".join(lines) + "\n", random)


def read_table(path: Path) -> list[dict[str, str]]:
    """Reads the rows, then what commands make of them."""
    rows = records(path)
    for use in (read_fit, striped.predict_rows, lambda p: measured(p, use="blind")):
        refused_or_read(lambda use=use: use(path))
    return rows


def command(random: Random) -> Made:
    return mutations.words(random.choice(seeds.COMMANDS), seeds.OPTIONS, random)


READERS: dict[str, Reader] = {
    "plan": Reader(
        document(seeds.plans, ".json", ".json", ".json.gz"), from_file(files.load), law_of_plans
    ),
    "hardware": Reader(
        document(seeds.machines, ".json", ".toml"), from_file(hardware), law_of_hardware
    ),
    "scenario": Reader(
        document(lambda: seeds.SCENARIOS, ".json", ".toml"),
        from_file(scenario_file),
        law_of_scenarios,
    ),
    "topology": Reader(
        document(lambda: seeds.TOPOLOGIES, ".json"), from_file(graph_of), law_of_topologies
    ),
    "trace": Reader(document(seeds.traces, ".json"), from_file(recorded), law_of_traces),
    "mask": Reader(a_text(seeds.MASKS), lambda made, _: parse(made), law_of_masks),
    "mask file": Reader(mask_file, from_file(read_mask_file), law_of_masks),
    "grid": Reader(document(lambda: seeds.GRIDS, ".toml"), from_file(read_grid), law_of_grids),
    "table": Reader(table, from_file(read_table), law_of_tables),
    "schedule": Reader(
        a_text(seeds.SCHEDULES), lambda made, _: find_schedule(made), law_of_schedules
    ),
    "length": Reader(
        a_text(seeds.LENGTHS), lambda made, _: given.parse_tokens(made), law_of_lengths
    ),
    "command": Reader(command, run_command, lambda made, read: None),
}
