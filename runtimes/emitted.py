"""Emits and loads programs for a run, also for a backward plan alone."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from types import ModuleType

import numpy as np

from ringloom.codegen import emit
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.passes.trim import trim
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.runtimes.kept import keep

SIDES = ("q", "kv", "kv", "q", "q", "q")  # of arguments: q, k, v, dout, out, lse
RESULTS = {
    "attention": ("q", "q", "kv", "kv"),
    "forward": ("q", "q"),
    "backward": ("q", "kv", "kv"),
}
LOADING = RLock()  # so that no thread gets a module that another thread is still executing


def load(source: str, folder: Path | None = None) -> ModuleType:
    """Returns an emitted program as a module; the same text gives the same module.

    A module registers its operators once. Its file stays in the folder, by default a temporary one
    of this process. Raises RingloomError if the file cannot be written.
    """
    digest = sha256(source.encode()).hexdigest()[:16]
    name = f"{'ringloom_program' if folder else 'emitted'}_{digest}"
    path = (folder or Path(_folder().name)) / f"{name}.py"
    with LOADING:
        if name not in sys.modules:
            keep(source.encode(), path)
            program = ModuleType(name)
            program.__file__ = str(path)
            sys.modules[name] = program  # torch.compile looks up a module's functions here
            try:
                exec(compile(source, path, "exec"), program.__dict__)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


@cache
def _folder() -> TemporaryDirectory[str]:
    """Returns the folder of this process's programs."""
    return TemporaryDirectory(prefix="ringloom-programs-")


@lru_cache(maxsize=4)  # plans are often run more than once, and hashing takes 1% of emitting
def source_of(plans: Plans, target: str) -> str:
    """Returns the program of plans; adds a forward plan with the same layout if there is none."""
    if plans.forward is None and plans.backward is not None:
        backward = fetched(plans.backward)
        plans = Plans(gathered(backward), backward)
    return emit(plans, target)


def fetched(plan: Plan) -> Plan:
    """Makes a backward plan independent of a forward pass: step 0 fetches what it started with.

    InitialCopy Q, KV --> Move(Q), Move(KV)      InitialCopy OUT --> Move(STATS)
    """
    if not plan.start:
        return plan
    moves = tuple(move for held in plan.start for move in _bringing(plan, held))
    alone = replace(plan, start=(), buffers=(), steps=(Step((), moves), *plan.steps))
    return verify(alone)


def _bringing(plan: Plan, held: InitialCopy) -> Iterator[Move]:
    """Yields moves from the owners of held blocks, one for each column of blocks."""
    tensors = tuple("STATS" if tensor == "OUT" else tensor for tensor in held.tensors)
    owners = plan.side(tensors[0]).owners
    for block in held.blocks.T:
        yield Move(tensors, block, owners[block], held.rank)


def gathered(plan: Plan) -> Plan:
    """Returns a forward plan of the same layout in which every rank gathers all keys."""
    q, kv = plan.side("Q"), plan.side("KV")
    block, dst = np.indices((len(kv), plan.ranks), np.int32).reshape(2, -1)
    one, other = np.nonzero(tiles(plan).shared_heads[np.ix_(q.slice, kv.slice)])
    steps = (
        Step((), (Move(("KV",), block, kv.owners[block], dst),)),
        Step((Attend(q.owners[one], one[:, None], other[:, None]),), ()),
    )
    forward = replace(plan, pass_="forward", start=(), buffers=(), steps=steps)
    return verify(trim(forward))
