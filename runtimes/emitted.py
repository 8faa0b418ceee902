"""Emits and loads programs for runs of forward plans, backward plans or both."""

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

SIDES = ("q", "kv", "kv", "q", "q", "q")  # of the arguments q, k, v, dout, out, lse
RESULTS = {
    "attention": ("q", "q", "kv", "kv"),
    "forward": ("q", "q"),
    "backward": ("q", "kv", "kv"),
}
LOADING = RLock()  # keeps threads from using a module that another thread is still executing


def load(source: str, folder: Path | None = None) -> ModuleType:
    """Returns an emitted program as a module; the same text gives the same module.

    A module registers its operators once. Its file stays in the folder, by default a temporary
    folder of this process. Raises RingloomError if the file cannot be written.
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


@lru_cache(maxsize=4)  # plans often run more than once, and hashing takes 1% of emitting
def source_of(plans: Plans, target: str) -> str:
    """Returns the program of plans; adds a forward plan with the same layout if there is none."""
    if plans.forward is None and plans.backward is not None:
        backward = without_initial_copies(plans.backward)
        plans = Plans(gather_forward(backward), backward)
    return emit(plans, target)


def without_initial_copies(plan: Plan) -> Plan:
    """Returns a backward plan whose step 0 fetches its initial copies, for runs of it alone.

    InitialCopy Q, KV --> Move(Q), Move(KV)      InitialCopy OUT --> Move(STATS)
    """
    if not plan.start:
        return plan
    moves = tuple(move for copy in plan.start for move in _fetch_moves(plan, copy))
    return verify(replace(plan, start=(), buffers=(), steps=(Step((), moves), *plan.steps)))


def _fetch_moves(plan: Plan, copy: InitialCopy) -> Iterator[Move]:
    """Yields moves from the owners of an initial copy, one move for each column of blocks."""
    tensors = tuple("STATS" if tensor == "OUT" else tensor for tensor in copy.tensors)
    owners = plan.side(tensors[0]).owners
    for block in copy.blocks.T:
        yield Move(tensors, block, owners[block], copy.rank)


def gather_forward(plan: Plan) -> Plan:
    """Returns a forward plan of the same layout in which every rank gathers all keys."""
    q, kv = plan.side("Q"), plan.side("KV")
    block, dst = np.indices((len(kv), plan.ranks), np.int32).reshape(2, -1)
    queries, keys = np.nonzero(tiles(plan).shared_heads[np.ix_(q.slice, kv.slice)])
    steps = (
        Step((), (Move(("KV",), block, kv.owners[block], dst),)),
        Step((Attend(q.owners[queries], queries[:, None], keys[:, None]),), ()),
    )
    forward = replace(plan, pass_="forward", start=(), buffers=(), steps=steps)
    return verify(trim(forward))
