"""Plan files: JSON with a version, one plan or a (forward, backward) pair, gzip if named .gz.

A plan file is untrusted input: sizes are capped before and after decompression, every field is
checked by the constructor it goes to, and the verifier sees the plan before anybody else does.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from planner.analysis.partial_sums import absent_sums
from planner.disk import writing
from planner.errors import PlanError, RingloomError
from planner.files.runs import LONG, expanded, length, runs_of
from planner.ir import Attend, Held, Move, Plan, Step
from planner.partitions import Block, Ints, Partition, Side
from planner.plans import AnyPlans, Plans
from planner.verify import verify, verify_pair
from planner.workload import Workload

# 2: messages of which some accumulators are absent, or OUT held at the start
# 3: values of another dimension than keys, or sinks
# 4: columns of many rows as runs, where those are shorter
VERSIONS = (1, 2, 3, 4)
LARGEST = 256 << 20  # bytes of JSON text
EXPANDED = 1 << 28  # numbers that the runs of a plan may stand for
Json = Any


def dumps(given: AnyPlans) -> str:
    """Returns the JSON text of a plan or of a (forward, backward) pair."""
    plans = Plans.of(given)
    version = max(map(_version, plans))
    return json.dumps({"ringloom": version, "plans": [_plan_out(p) for p in plans]})


def _version(plan: Plan) -> int:
    """Returns the first version whose readers accept a plan."""
    moves, attends = ((node for _, node in nodes) for nodes in (plan.moves(), plan.attends()))
    if any(len(node) >= LONG for node in chain[Held | Move | Attend](plan.start, moves, attends)):
        return 4
    if _added(plan.workload):
        return 3
    loosened = any(held.tensors == ("OUT",) for held in plan.start) or absent_sums(plan)
    return 2 if loosened else 1


def loads(text: str) -> Plan | Plans:
    """Reads the verified plans that a JSON text holds; PlanError says what is wrong with it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not a plan file: {error}") from None
    return _reading(_document_in, document)


def save(plans: AnyPlans, path: str | Path) -> None:
    """Write a plan file, compressed if its name ends in .gz; raises RingloomError if it cannot."""
    data = dumps(plans).encode()
    if str(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    with writing(path):
        Path(path).write_bytes(data)


def load(path: str | Path) -> Plan | Plans:
    """Read and verify a plan file; raises PlanError for an invalid one, RingloomError for none."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(31).decompress(data, LARGEST + 1)
        if len(data) > LARGEST:
            raise PlanError(f"{path}: more than {LARGEST} bytes of plan")
        return loads(data.decode())
    except OSError as error:
        raise RingloomError(f"{path}: cannot be read: {error.strerror}") from None
    except (zlib.error, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: not a readable plan file ({error})") from None
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def _reading(read: Callable[[Json], Plan | Plans], document: Json) -> Plan | Plans:
    try:
        return read(document)
    except PlanError:
        raise
    except KeyError as error:
        raise PlanError(f"corrupt plan file: no {error.args[0]!r} where one belongs") from None
    except (TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise PlanError(f"corrupt plan file: {error}") from None


def _document_in(document: Json) -> Plan | Plans:
    if not isinstance(document, dict) or "ringloom" not in document:
        raise PlanError("not a plan file: no 'ringloom' version in it")
    if document["ringloom"] not in VERSIONS or isinstance(document["ringloom"], bool):
        known = f"{VERSIONS[0]} to {VERSIONS[-1]}"
        raise PlanError(f"plan file of version {document['ringloom']!r}; this reads {known}")
    plans = [verify(_plan_in(p)) for p in _list(document["plans"], "plans")]
    match plans:
        case [plan]:
            return plan
        case [forward, backward]:
            return verify_pair(forward, backward)
        case _:
            raise PlanError(f"a plan file holds a plan or a pair, not {len(plans)} plans")


# ---- out


def _plan_out(plan: Plan) -> Json:
    return {
        "name": plan.name,
        "pass": plan.pass_,
        "ranks": plan.ranks,
        "workload": _workload_out(plan.workload),
        "partition": {s: [_block_out(b) for b in plan.partition.side(s).blocks] for s in SIDES},
        "start": [
            {"tensors": h.tensors, "blocks": _table_out(h.blocks), "rank": _column_out(h.rank)}
            for h in plan.start
        ],
        "buffers": [list(pair) for pair in plan.buffers],
        "steps": [_step_out(step) for step in plan.steps],
    }


SIDES = ("q", "kv")
NUMBERS = ("seq", "kv_seq", "heads", "kv_heads", "head_dim", "batch", "dtype", "scale")


def _workload_out(work: Workload) -> Json:
    numbers = {field: getattr(work, field) for field in NUMBERS}
    return {"mask": str(work.mask), **numbers, **_added(work)}


def _added(work: Workload) -> dict[str, Json]:
    """Returns the fields that came with version 3, where they change anything."""
    plain = {"v_head_dim": work.head_dim, "sinks": False}
    return {k: getattr(work, k) for k, usual in plain.items() if getattr(work, k) != usual}


def _block_out(block: Block) -> Json:
    positions = [[p.start, p.stop, p.step] for p in block.positions]
    return [positions, [block.heads.start, block.heads.stop], block.home]


def _step_out(step: Step) -> Json:
    attends = [
        {"rank": _column_out(a.rank), "q": _table_out(a.q), "kv": _table_out(a.kv)}
        for a in step.attends
    ]
    moves = [
        {
            "tensors": m.tensors,
            "blocks": _table_out(m.blocks),
            "src": _column_out(m.src),
            "dst": _column_out(m.dst),
        }
        for m in step.moves
    ]
    return {"attends": attends, "moves": moves}


def _column_out(column: Ints) -> Json:
    runs = runs_of(column)
    return column.tolist() if runs is None else {"runs": [runs]}


def _table_out(table: Ints) -> Json:
    runs = [runs_of(column) for column in table.T]
    return table.tolist() if None in runs else {"runs": runs}


# ---- in


def _list(value: Json, what: str) -> list[Json]:
    if not isinstance(value, list):
        raise PlanError(f"corrupt plan file: {what} must be a list, not {type(value).__name__}")
    return value


def _fields(value: Json, what: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise PlanError(f"corrupt plan file: {what} must be an object, not {value!r:.60}")
    return value


def _whole(value: Json, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlanError(f"corrupt plan file: {what} must be a whole number, not {value!r:.60}")
    return value


def _plan_in(value: Json) -> Plan:
    plan = _fields(value, "a plan")
    sides = _fields(plan["partition"], "partition")
    _check_sizes(plan)
    blocks = {s: tuple(_block_in(b) for b in _list(sides[s], f"{s} blocks")) for s in SIDES}
    return Plan(
        name=_text(plan["name"], "name"),
        workload=_workload_in(plan["workload"]),
        ranks=_whole(plan["ranks"], "ranks"),
        partition=Partition(q=Side(blocks["q"]), kv=Side(blocks["kv"])),
        pass_=plan["pass"],
        start=tuple(
            Held(_names(h), _table(h["blocks"]), _column(h["rank"]))
            for h in (_fields(h, "a held copy") for h in _list(plan["start"], "start"))
        ),
        buffers=tuple(
            (_text(t, "a tensor"), _whole(n, "slots")) for t, n in _list(plan["buffers"], "buffers")
        ),
        steps=tuple(_step_in(step) for step in _list(plan["steps"], "steps")),
    )


def _text(value: Json, what: str) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise PlanError(f"corrupt plan file: {what} must be a short text, not {value!r:.60}")
    return value


def _workload_in(value: Json) -> Workload:
    fields = dict(_fields(value, "workload"))
    text = fields.pop("mask")
    if not isinstance(text, str) or "@" in text:
        raise PlanError("corrupt plan file: the mask must be text, without a file name")
    if unknown := set(fields) - {*NUMBERS, "v_head_dim", "sinks"}:
        raise PlanError(f"corrupt plan file: unknown workload field {min(unknown)!r}")
    return Workload(mask=text, **fields)


def _block_in(value: Json) -> Block:
    positions, heads, home = _list(value, "a block")
    spans = [[_whole(n, "a position") for n in _list(p, "positions")] for p in positions]
    low, high = (_whole(n, "a head") for n in _list(heads, "heads"))
    return Block(tuple(range(*span) for span in spans), range(low, high), _whole(home, "a home"))


def _names(node: Mapping[str, Json]) -> tuple[str, ...]:
    return tuple(_text(t, "a tensor") for t in _list(node["tensors"], "tensors"))


def _column(value: Json) -> ArrayLike:
    if isinstance(value, dict):
        (runs,) = _list(value["runs"], "runs")
        return expanded(runs)
    return _list(value, "a column")


def _table(value: Json) -> ArrayLike:
    if isinstance(value, dict):
        return np.stack([expanded(runs) for runs in _list(value["runs"], "runs")], axis=1)
    return _list(value, "a table")


def _check_sizes(plan: Mapping[str, Json]) -> None:
    """Raises PlanError where the runs of a plan stand for too many numbers, before any is made."""
    steps = [_fields(step, "a step") for step in _list(plan["steps"], "steps")]
    kinds = [plan["start"], *(step[kind] for step in steps for kind in ("attends", "moves"))]
    nodes = [_fields(node, "a node") for kind in kinds for node in _list(kind, "nodes")]
    values = (value for node in nodes for value in node.values() if isinstance(value, dict))
    total = sum(length(runs) for value in values for runs in _list(value["runs"], "runs"))
    if total > EXPANDED:
        raise PlanError(f"the runs of a plan stand for {total} numbers, more than {EXPANDED}")


def _step_in(value: Json) -> Step:
    step = _fields(value, "a step")
    attends = [_fields(a, "an attend") for a in _list(step["attends"], "attends")]
    moves = [_fields(m, "a move") for m in _list(step["moves"], "moves")]
    return Step(
        tuple(Attend(_column(a["rank"]), _table(a["q"]), _table(a["kv"])) for a in attends),
        tuple(
            Move(_names(m), _table(m["blocks"]), _column(m["src"]), _column(m["dst"]))
            for m in moves
        ),
    )
