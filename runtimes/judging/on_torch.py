"""Runs a torch program to be judged, on processes that exchange over gloo."""

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
from ringloom.runtimes.judging.case import Case, layouts, misplacement
from ringloom.runtimes.process_tree import limit_memory
from ringloom.runtimes.torch.launch import in_processes
from ringloom.runtimes.torch.rank import Parts, to_numpy, to_torch


def run(case: Case, inputs: Sequence[Array], folder: Path, end: float) -> list[Parts]:
    """Returns the parts of all ranks; raises RankError if one of them fails or is late."""
    body = partial(attend, case=case, folder=folder)
    return in_processes("", case.ranks, tuple(inputs), body, end - time.monotonic())


def attend(
    _: ModuleType, group: Any, inputs: Sequence[Array], *, case: Case, folder: Path
) -> Parts:
    """Executes the program on a rank; returns its parts, as the module `case` defines them."""
    limit_memory(case.memory // case.ranks)
    program = load(case.source, folder)
    try:
        tables = [program.load(str(folder / "tables.npz"))] if case.dynamic else []
        q_layout, kv_layout = layouts(program, case, tables)
    except ValueError as error:
        return [np.array(str(error)[:400])]
    own = [q_layout[group.rank()], kv_layout[group.rank()]]
    if misplacement(case, q_layout, kv_layout):
        return own
    shards = [to_torch(x[:, :, at]) for x, at in zip(inputs, own[:1] + own[1:] * 2, strict=False)]
    given = [x.requires_grad_(case.backward) for x in (*shards, *map(to_torch, inputs[4:]))]
    named = dict(zip(("sinks",), given[3:], strict=False))
    if "seq" in signature(program.attention).parameters:
        named["seq"] = case.work.seq
    out = program.attention(*given[:3], *tables, group=group, **named)
    results = [out]
    if case.backward:
        dout = to_torch(inputs[3][:, :, own[0]])
        results += torch.autograd.grad(out, given, dout)
    return [*map(to_numpy, results), *own]
