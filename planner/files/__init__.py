"""Plan files: JSON with a version and one plan or a (forward, backward) pair; .gz is compressed.

A plan file is untrusted input. Reading limits sizes before and after decompression, and before it
makes columns or tables; constructors check all fields, and the verifier checks the plan.
"""

import gzip
import json
from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ringloom.planner.disk import from_json, read, write
from ringloom.planner.disk import largest as largest_file
from ringloom.planner.errors import PlanError, brief
from ringloom.planner.files.runs import SHORTEST_COLUMN, expand_runs, runs_of
from ringloom.planner.files.sizes import check_sizes
from ringloom.planner.given import LONGEST_NAME, require_name
from ringloom.planner.ir import Attend, InitialCopy, Move, Node, Plan, Step
from ringloom.planner.partitions import Block, Ints, Partition, Side
from ringloom.planner.plans import AnyPlans, Plans
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload

# 1: read, but no longer written
# 2: adds absent accumulators in messages, and initial copies of OUT
# 3: adds v_head_dim and sinks
# 4: adds runs, if shorter than the numbers of long columns
VERSIONS = (1, 2, 3, 4)
SIDES = ("q", "kv")
NODE_KINDS = ("attends", "moves")
WORKLOAD_FIELDS = ("seq", "kv_seq", "heads", "kv_heads", "head_dim", "batch", "dtype", "scale")
KINDS = {dict: "an object", list: "a list", int: "a whole number", str: "a short text"}
Json = Any
Checked = TypeVar("Checked", dict[str, Any], list[Any], int, str)
AnyNode = TypeVar("AnyNode", bound=Node)


def dumps(plans: AnyPlans) -> str:
    """Returns the JSON text of a plan or of a (forward, backward) pair."""
    pair = Plans.of(plans)
    version = max(map(_version, pair))
    return json.dumps({"ringloom": version, "plans": [_plan_out(p) for p in pair]})


def _version(plan: Plan) -> int:
    """Returns the first version whose readers accept a plan."""
    moves, attends = ((node for _, node in nodes) for nodes in (plan.moves(), plan.attends()))
    if any(
        len(node) >= SHORTEST_COLUMN
        for node in chain[InitialCopy | Move | Attend](plan.start, moves, attends)
    ):
        return 4
    return 3 if _new_fields(plan.workload) else 2


def loads(text: str, largest: int | None = None) -> Plan | Plans:
    """Reads and verifies the plans in a JSON text; raises PlanError if the text is invalid.

    `largest` (default: RINGLOOM_LARGEST_FILE or 64 MiB) limits the text in bytes, its values to one
    per 16 bytes, columns of plans in bytes, and tables of ranks x blocks in entries.
    """
    largest = largest_file() if largest is None else largest
    try:
        document = from_json(text, largest)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not a plan file: {error}") from None
    try:
        return _document_in(document, largest)
    except PlanError:
        raise
    except KeyError as error:
        raise PlanError(f"corrupt plan file: missing key {brief(error.args[0])}") from None
    except (TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise PlanError(f"corrupt plan file: {error}") from None


def save(plans: AnyPlans, path: str | Path) -> None:
    """Writes a plan file, compressed if its name ends in .gz; raises RingloomError on failure."""
    content = dumps(plans).encode()
    if str(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    write(path, content)


def load(path: str | Path, largest: int | None = None) -> Plan | Plans:
    """Reads and verifies a plan file; raises PlanError if invalid, RingloomError if unreadable.

    `largest` limits the decompressed bytes; default: RINGLOOM_LARGEST_FILE or 64 MiB.
    """
    largest = largest_file() if largest is None else largest
    return read(path, lambda content: loads(content.decode(), largest), str(path), largest)


def _document_in(document: Json, largest: int) -> Plan | Plans:
    if not isinstance(document, dict) or "ringloom" not in document:
        raise PlanError("not a plan file: it has no 'ringloom' version")
    if type(version := document["ringloom"]) is not int or version not in VERSIONS:
        supported = f"{VERSIONS[0]} to {VERSIONS[-1]}"
        raise PlanError(f"plan file version {brief(version)} is not supported, only {supported}")
    plans = _checked(list, document["plans"], "plans")
    if len(plans) > 2:
        raise PlanError(f"a plan file holds a plan or a pair, not {len(plans)} plans")
    match [*map(verify, map(partial(_plan_in, largest=largest), plans))]:
        case [plan]:
            return plan
        case [forward, backward]:
            return verify_pair(forward, backward)
        case plans:
            raise PlanError(f"a plan file holds a plan or a pair, not {len(plans)} plans")


def _checked(kind: type[Checked], value: Json, label: str) -> Checked:
    """Returns the value; raises PlanError unless it is of the given kind."""
    is_long = isinstance(value, str) and len(value) > LONGEST_NAME
    if not isinstance(value, kind) or isinstance(value, bool) or is_long:
        raise PlanError(f"corrupt plan file: {label} must be {KINDS[kind]}, not {brief(value)}")
    return value


# ---- plans


def _plan_out(plan: Plan) -> Json:
    return {
        "name": plan.name,
        "pass": plan.pass_,
        "ranks": plan.ranks,
        "workload": _workload_out(plan.workload),
        "partition": {s: [_block_out(b) for b in plan.partition.side(s).blocks] for s in SIDES},
        "start": [_node_out(copies) for copies in plan.start],
        "buffers": [list(pair) for pair in plan.buffers],
        "steps": [
            {kind: [_node_out(node) for node in getattr(step, kind)] for kind in NODE_KINDS}
            for step in plan.steps
        ],
    }


def _plan_in(value: Json, largest: int) -> Plan:
    plan = _checked(dict, value, "a plan")
    sides = _checked(dict, plan["partition"], "partition")
    ranks = _checked(int, plan["ranks"], "ranks")
    check_sizes(plan, largest)
    return Plan(
        name=require_name("the name", _checked(str, plan["name"], "name")),
        workload=_workload_in(plan["workload"]),
        ranks=ranks,
        partition=Partition(*(Side(tuple(map(_block_in, sides[side]))) for side in SIDES)),
        pass_=plan["pass"],
        start=tuple(_node_in(InitialCopy, copies) for copies in plan["start"]),
        buffers=tuple(
            (_checked(str, tensor, "a tensor"), _checked(int, slots, "slots"))
            for tensor, slots in _checked(list, plan["buffers"], "buffers")
        ),
        steps=tuple(
            Step(
                tuple(_node_in(Attend, node) for node in step["attends"]),
                tuple(_node_in(Move, node) for node in step["moves"]),
            )
            for step in plan["steps"]
        ),
    )


# ---- parts of plans


def _workload_out(work: Workload) -> Json:
    numbers = {field: getattr(work, field) for field in WORKLOAD_FIELDS}
    return {"mask": str(work.mask), **numbers, **_new_fields(work)}


def _workload_in(value: Json) -> Workload:
    fields = dict(_checked(dict, value, "workload"))
    text = fields.pop("mask")
    if not isinstance(text, str) or "@" in text:
        raise PlanError("corrupt plan file: the mask must be text, without a file name")
    if unknown := set(fields) - {*WORKLOAD_FIELDS, "v_head_dim", "sinks"}:
        raise PlanError(f"corrupt plan file: unknown workload field {brief(min(unknown))}")
    return Workload(mask=text, **fields)


def _new_fields(work: Workload) -> dict[str, Json]:
    """Returns the fields added in version 3 that differ from their defaults."""
    defaults = {"v_head_dim": work.head_dim, "sinks": False}
    return {k: getattr(work, k) for k, default in defaults.items() if getattr(work, k) != default}


def _block_out(block: Block) -> Json:
    positions = [[p.start, p.stop, p.step] for p in block.positions]
    return [positions, [block.heads.start, block.heads.stop], block.home]


def _block_in(value: Json) -> Block:
    positions, heads, owner = _checked(list, value, "a block")
    ranges = [[_checked(int, n, "a position") for n in part] for part in positions]
    low, high = (_checked(int, n, "a head") for n in heads)
    rank = _checked(int, owner, "an owner")
    return Block(tuple(range(*s) for s in ranges), range(low, high), rank)


def _node_out(node: Node) -> Json:
    fields = {name: getattr(node, name) for name in node.__slots__}
    return {k: v if k == "tensors" else _array_out(v) for k, v in fields.items()}


def _node_in(kind: type[AnyNode], node: Mapping[str, Json]) -> AnyNode:
    fields = {name: node[name] for name in kind.__slots__}
    return kind(**{k: _names(v) if k == "tensors" else _array_in(v) for k, v in fields.items()})


def _names(value: Json) -> tuple[str, ...]:
    return tuple(_checked(str, tensor, "a tensor") for tensor in _checked(list, value, "tensors"))


def _array_out(array: Ints) -> Json:
    runs = [runs_of(column) for column in np.atleast_2d(array.T)]
    return array.tolist() if None in runs else {"runs": runs}


def _array_in(value: Json) -> ArrayLike:
    if not isinstance(value, dict):
        return _checked(list, value, "a column")
    columns = [expand_runs(runs) for runs in value["runs"]]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
