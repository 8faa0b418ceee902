"""check_sizes(plan, largest)   limits the memory that a plan file needs before allocating any.

columns   the numbers that runs stand for, four bytes each
tables    ranks x blocks, ranks x ranks, query blocks x KV blocks, tiles of all rectangles: the
          verifier keeps a table of them, or visits them
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ringloom.planner.disk import LIMIT_VARIABLE
from ringloom.planner.errors import PlanError, brief
from ringloom.planner.files.runs import count_numbers

Json = Any
NUMBER_BYTES = 4  # bytes of a number in a column


def check_sizes(plan: Mapping[str, Json], largest: int) -> None:
    """Raises PlanError if columns or tables of a plan would take more than `largest` bytes."""
    numbers = sum(count_numbers(column) for node in _nodes(plan) for column in _columns(node))
    _check(f"the runs of a plan stand for {numbers} numbers", numbers, largest // NUMBER_BYTES)
    ranks = plan["ranks"]
    q, kv = ([str(block[0]) for block in plan["partition"][side]] for side in ("q", "kv"))
    blocks = max(len(q), len(kv))
    _check(f"{ranks} ranks x {ranks} ranks", ranks * ranks, largest)
    _check(f"{ranks} ranks x {blocks} blocks", ranks * blocks, largest)
    q, kv = [*{*q}], [*{*kv}]
    _check(f"{len(q)} query blocks x {len(kv)} KV blocks", len(q) * len(kv), largest)
    tiles = sum(_tiles(node) for step in plan["steps"] for node in step["attends"])
    _check(f"{tiles} tiles in rectangles", tiles, largest)


def _check(label: str, entries: int, limit: int) -> None:
    if entries > limit:
        advice = f"raise `largest` or {LIMIT_VARIABLE} if you trust the file"
        raise PlanError(f"{label}: more than the limit of {limit} for plan files; {advice}")


def _nodes(plan: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    yield from plan["start"]
    for step in plan["steps"]:
        yield from step["attends"]
        yield from step["moves"]


def _columns(node: Mapping[str, Json]) -> Iterator[Json]:
    """Yields the columns of a node that are stored as runs."""
    for value in node.values():
        if isinstance(value, dict):
            if not isinstance(columns := value["runs"], list):
                raise PlanError(f"corrupt plan file: runs must be a list, not {brief(columns)}")
            yield from columns


def _tiles(attend: Mapping[str, Json]) -> int:
    """Returns the number of tiles (query blocks x KV blocks) in all rectangles of a node."""
    (rows, width), (_, keys) = map(_shape, (attend["q"], attend["kv"]))
    return rows * width * keys


def _shape(table: Json) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a table of blocks; the table may be invalid."""
    if isinstance(table, dict):
        columns = table["runs"]
        return max(map(count_numbers, columns), default=0), len(columns)
    widths = [len(row) for row in table if isinstance(row, list)]
    return len(table), max(widths, default=1)
