"""ringloom: plan distributed attention, verify it, predict it, emit it, run it.

>>> import ringloom as rl
>>> work = rl.Workload(seq=4096, heads=8, mask=rl.Causal())
>>> plan = rl.plan("striped", work, ranks=8)
>>> plan.rounds
8
"""

from importlib import import_module
from pathlib import Path

for _name in ("planner", "simulator", "codegen", "runtimes"):
    _found = getattr(import_module(_name), "__file__", None)
    if _found is None or Path(_found).parent.parent != Path(__file__).parent.parent:
        raise ImportError(
            f"ringloom needs its own package {_name!r}, but {_found or 'a folder'} shadows it:"
            " move that out of the way, or start Python elsewhere"
        )

from codegen.emitting import emit, tables
from planner.errors import PlanError
from planner.files import load, save
from planner.ir import Attend, Held, Move, Plan, Step
from planner.masks import (
    And,
    Blocks,
    Causal,
    Documents,
    Full,
    Global,
    Mask,
    Or,
    Prefix,
    Window,
)
from planner.partitions import Block, Partition, Side
from planner.passes.adjoint import adjoint
from planner.passes.homeward import direct, homeward
from planner.passes.trim import trim
from planner.planning import derive, plan
from planner.schedules import SCHEDULES
from planner.verify import verify
from planner.version import VERSION as __version__
from planner.workload import Workload
from ringloom.adapters import shard_batch, transformers_attention
from ringloom.compiling import compile
from ringloom.recording import Recording, record
from ringloom.running import run
from simulator.hardware import Hardware, hardware
from simulator.prediction import Prediction, simulate

__all__ = [
    "SCHEDULES",
    "And",
    "Attend",
    "Block",
    "Blocks",
    "Causal",
    "Documents",
    "Full",
    "Global",
    "Hardware",
    "Held",
    "Mask",
    "Move",
    "Or",
    "Partition",
    "Plan",
    "PlanError",
    "Prediction",
    "Prefix",
    "Recording",
    "Side",
    "Step",
    "Window",
    "Workload",
    "__version__",
    "adjoint",
    "compile",
    "derive",
    "direct",
    "emit",
    "hardware",
    "homeward",
    "load",
    "plan",
    "record",
    "run",
    "save",
    "shard_batch",
    "simulate",
    "tables",
    "transformers_attention",
    "trim",
    "verify",
]
