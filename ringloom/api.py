"""The names of `rl.`, loaded when one of them is first asked for."""

from codegen.emitting import emit, tables
from planner.errors import PlanError, RingloomError
from planner.files import load, save
from planner.ir import Attend, Held, Move, Plan, Step
from planner.layouts import balance, by_tokens
from planner.masks import (
    And,
    BlockCausal,
    Blocks,
    Causal,
    Chunks,
    Documents,
    Full,
    Global,
    Keys,
    Mask,
    Or,
    Prefix,
    Slices,
    Tree,
    Varlen,
    Window,
)
from planner.masks.packing import from_cu_seqlens, to_cu_seqlens
from planner.partitions import Block, Partition, Side
from planner.passes.adjoint import adjoint
from planner.passes.homeward import direct, homeward
from planner.passes.trim import trim
from planner.planning import derive, plan
from planner.plans import Plans
from planner.positions import document_positions
from planner.schedules import SCHEDULES
from planner.verify import verify
from planner.version import VERSION as __version__
from planner.workload import Workload
from ringloom.adapters import (
    from_block_mask,
    shard_batch,
    to_block_mask,
    transformers_attention,
)
from ringloom.comparison import Comparison, compare
from ringloom.compiling import compile
from ringloom.recording import Recording, record
from ringloom.registering import schedule
from ringloom.sweeps.run import sweep
from runtimes.backends import run
from runtimes.validation import Check, check
from simulator.bounds import Bounds
from simulator.chrome_trace import save_trace, trace
from simulator.hardware import Hardware, hardware
from simulator.network.topology import Topology, topology
from simulator.prediction import Prediction, simulate
from simulator.scenario import Scenario

__all__ = [
    "SCHEDULES",
    "And",
    "Attend",
    "Block",
    "BlockCausal",
    "Blocks",
    "Bounds",
    "Causal",
    "Check",
    "Chunks",
    "Comparison",
    "Documents",
    "Full",
    "Global",
    "Hardware",
    "Held",
    "Keys",
    "Mask",
    "Move",
    "Or",
    "Partition",
    "Plan",
    "PlanError",
    "Plans",
    "Prediction",
    "Prefix",
    "Recording",
    "RingloomError",
    "Scenario",
    "Side",
    "Slices",
    "Step",
    "Topology",
    "Tree",
    "Varlen",
    "Window",
    "Workload",
    "__version__",
    "adjoint",
    "balance",
    "by_tokens",
    "check",
    "compare",
    "compile",
    "derive",
    "direct",
    "document_positions",
    "emit",
    "from_block_mask",
    "from_cu_seqlens",
    "hardware",
    "homeward",
    "load",
    "plan",
    "record",
    "run",
    "save",
    "save_trace",
    "schedule",
    "shard_batch",
    "simulate",
    "sweep",
    "tables",
    "to_block_mask",
    "to_cu_seqlens",
    "topology",
    "trace",
    "transformers_attention",
    "trim",
    "verify",
]
