"""The page on the whole model of the simulator: its formulas, its constants, what it leaves out."""

from collections.abc import Sequence
from math import expm1

import numpy as np
from markdown import Lines, table

import ringloom as rl
from ringloom.simulator.confidence import SOURCES, basis
from ringloom.simulator.costs.terms import TERMS
from ringloom.simulator.hardware import Hardware, hardware
from ringloom.simulator.hardware.schema import unit_of
from ringloom.simulator.timeline import spans

SHOWN = "h100:fa3"
DTYPE = "bfloat16"
WORK = rl.Workload(seq=2**16, heads=32, kv_heads=8, head_dim=128, mask="causal", dtype=DTYPE)
EVENTS = {
    "attend": "beside the calls of an attend",
    "add": "where a call's result meets a sum on its rank",
    "merge": "where a sum arrives",
    "exchange": "at both ends of an all-to-all of heads",
    "prologue": "before the first step",
}
FORMULAS = """
call     = max(host, launch + max(work, moved))
work     = (pairs x flop / rate + traffic x moved) x (waves, rounded up) / waves
pairs    = those that the mask allows, in whole tiles of tile_q x tile_kv,
           of all heads and batch rows; x causal, where a call is causal or has a window
flop     = 4 x head_dim of a pair forward, 10 x head_dim backward
rate     = peak x forward (or backward) x (1 + head_half / 128) / (1 + head_half / head_dim)
moved    = (inputs and results of the call, once each) / bandwidth of the memory
waves    = (heads x rows / tile_q; backward: heads x columns / tile_kv) / blocks
message  = alpha + bytes / bandwidth, of the links inside a node or of those between nodes;
           bytes x incast in an all-to-all between nodes
"""
TIMES = """
* A rank begins a step when its attends and merges of the step before have ended. Then its messages
  of the step are offered.
* A message starts when its blocks are there, and its sender's way out and its receiver's way in are
  free: first in, first out. On a torus, a mesh or a tree of PCIe it also shares every link of its
  way with the messages that meet it there.
* An attend starts when its rank is free and its blocks have arrived. A message that is under way
  takes `sm_share` of the chip from attends at both ends.
* The result of an all-to-all is copied once all of it has arrived, before the next step begins.
* A pass ends when the last rank does; a backward pass follows the forward pass.
"""
LEFT_OUT = """
* All parts of a model but attention, and overlap with them: a gather that a compiler runs beside
  the layer before is priced as if attention waited for it.
* The copies that join what a gather brings, and that arrange what a reduce-scatter sends.
* Waiting of programs that run a plan by tables. In torch a rank that passes a copy on waits for it
  before it attends in that step, even to blocks that are there; in JAX a step ends when all that it
  brings to a rank is there, even if it is read later.
* Clocks that fall under load, caches, and kernels that choose another tile for another length.
* Merging the results of keys that a kernel splits; how a backward kernel adds up gradients.
* Other traffic on the links, retries, and noise of hosts. What is known of these beforehand, a slow
  rank or link, late launches, another topology, is told as a [scenario](../predictions.md#what-if).
"""


def page() -> Lines:
    """Write the whole page."""
    machine = hardware(SHOWN)
    yield from ("# The model on one page", "")
    yield from (
        "A plan is a list of steps, and a step has attends and messages. A prediction gives each",
        "of them a start and a time in seconds. This page is the whole model;",
        "[what a prediction is made of](../hardware.md) explains it part by part.",
        "",
        "## What things take",
        "",
        "A rectangle of queries and keys is cut into the kernel calls that emitted programs make.",
        "",
        "```text",
        *FORMULAS.strip().split("\n"),
        "```",
        "",
        f"{len(TERMS)} costs are added. Each is a function in `simulator/costs/terms.py`:",
        "",
    )
    yield from table(("", "when", "what"), map(_term, TERMS))
    yield from ("## When things run", "", *TIMES.strip().split("\n"), "")
    yield from _example(machine)
    yield from (
        "## Constants",
        "",
        f"Those of `{SHOWN}`; [all presets](hardware_presets.md) have theirs, with their sources.",
        "",
    )
    yield from table(("constant", "value", "from"), _constants(machine))
    yield from ("## What is left out", "", *LEFT_OUT.strip().split("\n"), "")
    own, every = (100 * expm1(basis(SHOWN, p).error) for p in ("forward", "backward"))
    yield from (
        "## How far off it is",
        "",
        f"Nine of ten predictions of forward passes on H100 should be within {own:.0f}%. Where a",
        f"chip or a pass has fewer than {SOURCES} sources, the errors on all chips are used:",
        f"{every:.0f}%. An interval is wider where a constant of the chip was not measured.",
        "[Predictions against measurements](validation.md) has every row.",
        "",
    )


def _term(name: str) -> tuple[str, str, str]:
    event, seconds = TERMS[name]
    said = (seconds.__doc__ or "").partition("\n")[0]
    return f"`{name}`", EVENTS[event], said


def constants(machine: Hardware) -> Sequence[str]:
    """Return the constants that the time of attention in one dtype may depend on."""
    kinds = [k for k in machine.constants if k.startswith("peak.")]
    return [k for k in machine.constants if k not in kinds or k == f"peak.{DTYPE}"]


def _constants(machine: Hardware) -> Lines:
    for key in constants(machine):
        one, unit = machine.constants[key], unit_of(key).name
        assumed = "" if one.calibrated else " **(assumed)**"
        yield f"`{key}`", f"{one.value:.4g} {unit}", f"{one.source}{assumed}"  # type: ignore[misc]


def _example(machine: Hardware) -> Lines:
    """Sum up what the busiest rank does in a run."""
    result = rl.simulate(rl.plan("zigzag", WORK, 8), machine, record=True)
    assert result.timeline is not None
    rank = int(np.argmax(result.busy))
    own = [span for span in spans(result.timeline) if span.rank == rank]
    rows = list[tuple[str, int, str]]()
    for stream in ("compute", "merge", "send"):
        parts = [span.end - span.start for span in own if span.stream == stream]
        rows.append((stream, len(parts), f"{1e3 * sum(parts):.2f} ms"))
    yield from (
        f"`zigzag` on 8 ranks, {WORK.seq // 1024}k causal tokens, forward, takes",
        f"{1e3 * result.makespan:.2f} ms. Its busiest rank sends while it computes:",
        "",
    )
    yield from table((f"rank {rank}", "spans", "together"), rows)
