"""Runs a torch program that is being judged, on processes that use gloo."""

import time
from collections.abc import Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.emitted import load
from ringloom.runtimes.judging.case import Case, layouts, layouts_error
from ringloom.runtimes.process_tree import limit_memory
from ringloom.runtimes.torch.launch import in_processes
from ringloom.runtimes.torch.rank import Parts, to_numpy, to_torch


def run(case: Case, inputs: Sequence[Array], folder: Path, end: float) -> list[Parts]:
    """Returns the parts of all ranks; raises RankError if a rank fails or is late."""
    body = partial(attend, case=case, folder=folder)
    return in_processes("", case.ranks, tuple(inputs), body, end - time.monotonic())


def attend(
    _: ModuleType, group: Any, inputs: Sequence[Array], *, case: Case, folder: Path
) -> Parts:
    """Executes the program on a rank; returns its parts, which the module `case` defines."""
    limit_memory(case.memory // case.ranks)
    program = load(case.source, folder)
    try:
        tables = [program.load(str(folder / "tables.npz"))] if case.dynamic else []
        q_layout, kv_layout = layouts(program, case, tables)
    except ValueError as error:
        return [np.array(str(error)[:400])]
    q, kv = q_layout[group.rank()], kv_layout[group.rank()]
    if layouts_error(case, q_layout, kv_layout):
        return [q, kv]
    shards = [to_torch(x[:, :, side]) for x, side in zip(inputs, (q, kv, kv), strict=False)]
    leaves = [x.requires_grad_(case.backward) for x in (*shards, *map(to_torch, inputs[4:]))]
    options = dict(zip(("sinks",), leaves[3:], strict=False))
    if "seq" in signature(program.attention).parameters:
        options["seq"] = case.work.seq
    out = program.attention(*leaves[:3], *tables, group=group, **options)
    results = [out]
    if case.backward:
        dout = to_torch(inputs[3][:, :, q])
        results += torch.autograd.grad(out, leaves, dout)
    return [*map(to_numpy, results), q, kv]
