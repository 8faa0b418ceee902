"""Programs that are emitted to be run, with or without a forward plan to begin with."""

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

SIDES = ("q", "kv", "kv", "q", "q", "q")  # of what functions take: q, k, v, dout, out, lse
RESULTS = {
    "attention": ("q", "q", "kv", "kv"),
    "forward": ("q", "q"),
    "backward": ("q", "kv", "kv"),
}
LOADING = RLock()  # no thread gets a module that another one has begun to run


def load(source: str, folder: Path | None = None) -> ModuleType:
    """Returns an emitted program as a module, one for each text: it registers its operators once.

    Its file is kept in the folder, or without one as long as this process runs. Raises
    RingloomError where it cannot be written.
    """
    digest = sha256(source.encode()).hexdigest()[:16]
    name = f"{'ringloom_program' if folder else 'emitted'}_{digest}"
    path = (folder or Path(_folder().name)) / f"{name}.py"
    with LOADING:
        if name not in sys.modules:
            keep(source.encode(), path)
            program = ModuleType(name)
            program.__file__ = str(path)
            sys.modules[name] = program  # torch.compile looks there for the functions of a module
            try:
                exec(compile(source, path, "exec"), program.__dict__)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


@cache
def _folder() -> TemporaryDirectory[str]:
    """Returns the files of this process's programs."""
    return TemporaryDirectory(prefix="ringloom-programs-")


@lru_cache(maxsize=4)  # a plan is often run again, and hashed in a hundredth of the time
def source_of(plans: Plans, target: str) -> str:
    """Emits the program of plans; a backward plan alone gets a forward plan of its layout."""
    if plans.forward is None and plans.backward is not None:
        backward = fetched(plans.backward)
        plans = Plans(gathered(backward), backward)
    return emit(plans, target)


def fetched(plan: Plan) -> Plan:
    """Makes a backward plan need nothing of a forward pass: step 0 brings what it had before.

    InitialCopy Q, KV --> Move(Q), Move(KV)      InitialCopy OUT --> Move(STATS)
    """
    if not plan.start:
        return plan
    moves = tuple(move for held in plan.start for move in _bringing(plan, held))
    alone = replace(plan, start=(), buffers=(), steps=(Step((), moves), *plan.steps))
    return verify(alone)


def _bringing(plan: Plan, held: InitialCopy) -> Iterator[Move]:
    """Messages from the owners of held blocks, a column of blocks at a time."""
    tensors = tuple("STATS" if tensor == "OUT" else tensor for tensor in held.tensors)
    owners = plan.side(tensors[0]).owners
    for block in held.blocks.T:
        yield Move(tensors, block, owners[block], held.rank)


def gathered(plan: Plan) -> Plan:
    """Returns a forward plan of the same layout: every rank gets all keys, and attends to them."""
    q, kv = plan.side("Q"), plan.side("KV")
    block, dst = np.indices((len(kv), plan.ranks), np.int32).reshape(2, -1)
    one, other = np.nonzero(tiles(plan).shared_heads[np.ix_(q.slice, kv.slice)])
    steps = (
        Step((), (Move(("KV",), block, kv.owners[block], dst),)),
        Step((Attend(q.owners[one], one[:, None], other[:, None]),), ()),
    )
    ahead = replace(plan, pass_="forward", start=(), buffers=(), steps=steps)
    return verify(trim(ahead))
