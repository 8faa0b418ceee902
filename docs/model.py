"""Writes the page on the simulator's model: formulas, constants, and what the model leaves out."""

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

MACHINE = "h100:fa3"
DTYPE = "bfloat16"
WORK = rl.Workload(seq=2**16, heads=32, kv_heads=8, head_dim=128, mask="causal", dtype=DTYPE)
EVENTS = {
    "attend": "in addition to the calls of an attend",
    "add": "when a call's result is added to a sum on its rank",
    "merge": "when a sum arrives",
    "exchange": "at both ends of an all-to-all of heads",
    "prologue": "before the first step",
}
FORMULAS = """
call     = max(host, launch + max(work, moved))
work     = (pairs x flop / rate + traffic x moved) x (waves, rounded up) / waves
pairs    = allowed by the mask, in whole tiles of tile_q x tile_kv,
           of all heads and batch rows; x causal, if a call is causal or has a window
flop     = per pair 4 x head_dim forward, 10 x head_dim backward
rate     = peak x forward (or backward) x (1 + head_half / 128) / (1 + head_half / head_dim)
moved    = (inputs and results of the call, once each) / bandwidth of the memory
waves    = (heads x rows / tile_q; backward: heads x columns / tile_kv) / blocks
message  = alpha + bytes / bandwidth, of the links inside a node or between nodes;
           bytes x incast in an all-to-all between nodes
"""
TIMES = """
* A rank begins a step when its attends and merges of the previous step have ended. It then offers
  the messages of the step.
* A message starts when its blocks have arrived at the sender and the sender's outgoing and the
  receiver's incoming link are free, first in, first out. On a torus, a mesh or a tree of PCIe
  links, messages share the bandwidth of every link that they use at the same time.
* An attend starts when its rank is free and its blocks have arrived. A message in transit takes
  `sm_share` of the chip from attends at both ends.
* The result of an all-to-all is copied once all of it has arrived, before the next step begins.
* A pass ends when the last rank ends; a backward pass follows the forward pass.
"""
LEFT_OUT = """
* All parts of a model except attention, and overlap with these parts: a gather that a compiler
  overlaps with the previous layer is priced as if attention waited for it.
* The copies that concatenate the results of a gather or arrange the input of a reduce-scatter.
* Waits of programs that run a plan from tables. In torch, a rank that relays a copy waits for the
  copy before it attends in that step, even to blocks that have arrived; in JAX, a step ends when
  all of its messages have arrived, even messages that are read later.
* Clock throttling, caches, and kernels that choose tiles by the length.
* Merging the results of keys that a kernel splits, and how a backward kernel accumulates gradients.
* Other traffic on the links, retries, and host noise. If you know of a slow rank or link, late
  launches or another topology, describe it as a [scenario](../predictions.md#what-if).
"""


def page() -> Lines:
    """Writes the whole page."""
    machine = hardware(MACHINE)
    yield from ("# The model on one page", "")
    yield from (
        "A plan is a list of steps, and a step has attends and messages. A prediction assigns a",
        "start and a duration in seconds to each attend and message. This page is the whole model;",
        "[what a prediction is made of](../hardware.md) explains its parts.",
        "",
        "## Durations",
        "",
        "A rectangle of queries and keys is cut into the kernel calls that emitted programs make.",
        "",
        "```text",
        *FORMULAS.strip().split("\n"),
        "```",
        "",
        f"{len(TERMS)} other costs are added by functions in `simulator/costs/terms.py`:",
        "",
    )
    yield from table(("", "when", "cost"), map(_term, TERMS))
    yield from ("## Start times", "", *TIMES.strip().split("\n"), "")
    yield from _example(machine)
    yield from (
        "## Constants",
        "",
        f"These are the constants of `{MACHINE}`; [another page](hardware_presets.md) lists all",
        "presets.",
        "",
    )
    yield from table(("constant", "value", "source"), _constants(machine))
    yield from ("## What is left out", "", *LEFT_OUT.strip().split("\n"), "")
    forward, backward = (100 * expm1(basis(MACHINE, p).error) for p in ("forward", "backward"))
    yield from (
        "## Accuracy",
        "",
        f"Nine of ten measured forward passes on H100 should be within {forward:.0f}% of their",
        f"predictions. If a chip or a pass has fewer than {SOURCES} sources, the errors on all",
        f"chips are used: {backward:.0f}%. An interval is wider if a constant of the chip was not",
        "measured. [Predictions against measurements](validation.md) lists every row.",
        "",
    )


def _term(name: str) -> tuple[str, str, str]:
    event, seconds = TERMS[name]
    summary = (seconds.__doc__ or "").partition("\n")[0]
    return f"`{name}`", EVENTS[event], summary


def constants(machine: Hardware) -> Sequence[str]:
    """Returns the constants on which the time of attention in one dtype may depend."""
    keys = machine.constants
    return [k for k in keys if not k.startswith("peak.") or k == f"peak.{DTYPE}"]


def _constants(machine: Hardware) -> Lines:
    for key in constants(machine):
        constant, unit = machine.constants[key], unit_of(key).name
        mark = "" if constant.calibrated else " **(assumed)**"
        yield f"`{key}`", f"{constant.value:.4g} {unit}", f"{constant.source}{mark}"  # type: ignore[misc]


def _example(machine: Hardware) -> Lines:
    """Sums the durations of the busiest rank in a run, by kind."""
    result = rl.simulate(rl.plan("zigzag", WORK, 8), machine, record=True)
    assert result.timeline is not None
    rank = int(np.argmax(result.busy))
    rank_spans = [span for span in spans(result.timeline) if span.rank == rank]
    rows = list[tuple[str, int, str]]()
    for stream in ("compute", "merge", "send"):
        times = [span.end - span.start for span in rank_spans if span.stream == stream]
        rows.append((stream, len(times), f"{1e3 * sum(times):.2f} ms"))
    yield from (
        f"`zigzag` on 8 ranks, {WORK.seq // 1024}k causal tokens, forward, takes",
        f"{1e3 * result.makespan:.2f} ms. The table sums the times of its busiest rank, which",
        "sends while it computes:",
        "",
    )
    yield from table((f"rank {rank}", "spans", "total time"), rows)
