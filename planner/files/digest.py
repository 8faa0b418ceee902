"""digest(plans)   a hash of what plans do: equal for equal plans, whatever they are called."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from ringloom.planner.ir import Plan
from ringloom.planner.workload import Workload

LENGTH = 16  # hexadecimal digits


def digest(plans: Iterable[Plan]) -> str:
    """The first digits of the SHA-256 of workload, ranks, partition and rows of some plans."""
    sha = hashlib.sha256()
    for plan in plans:
        given = [(each.name, str(getattr(plan.workload, each.name))) for each in fields(Workload)]
        for part in (given, plan.ranks, plan.pass_, plan.buffers):
            sha.update(f"{part!r}\n".encode())
        for side in (plan.partition.q, plan.partition.kv):
            sha.update(f"{side.chunks!r} {side.slices!r}\n".encode())
            for column in (side.chunk, side.slice, side.owners):
                sha.update(np.ascontiguousarray(column).tobytes())
        for node in plan.start:
            _add(sha, node)
        for step in plan.steps:
            sha.update(b"step\n")
            for one in (*step.attends, *step.moves):
                _add(sha, one)
    return sha.hexdigest()[:LENGTH]


def described(plans: Iterable[Plan]) -> str:
    """Returns passes and workload of some plans in words: forward and backward of Workload(...)."""
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
