"""digest(plans)   returns a hash of the contents of plans, independent of their names."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.planner.workload import Workload

LENGTH = 16  # hexadecimal digits


def digest(plans: Iterable[Plan]) -> str:
    """Returns the first digits of the SHA-256 of the plans' workloads, partitions and rows."""
    sha = hashlib.sha256()
    for plan in plans:
        workload = [(f.name, str(getattr(plan.workload, f.name))) for f in fields(Workload)]
        for part in (workload, plan.ranks, plan.pass_, plan.buffers):
            sha.update(f"{part!r}\n".encode())
        for side in (plan.partition.q, plan.partition.kv):
            sha.update(f"{side.chunks!r} {side.slices!r}\n".encode())
            for column in (side.chunk, side.slice, side.owners):
                sha.update(np.ascontiguousarray(column).tobytes())
        for copy in plan.start:
            _add(sha, copy)
        for step in plan.steps:
            sha.update(b"step\n")
            for node in (*step.attends, *step.moves):
                _add(sha, node)
    return sha.hexdigest()[:LENGTH]


def describe_plans(plans: Iterable[Plan]) -> str:
    """Returns the passes and the workload, such as "forward and backward of Workload(...)"."""
    first, *others = plans
    return f"{' and '.join(plan.pass_ for plan in (first, *others))} of {first.workload}"


def _add(sha: Any, node: Any) -> None:
    sha.update(type(node).__name__.encode())
    for field in node._fields():
        if isinstance(field, np.ndarray):
            sha.update(f"{field.shape}".encode())
            sha.update(np.ascontiguousarray(field).tobytes())
        else:
            sha.update(f"{field!r}".encode())
