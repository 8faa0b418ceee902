"""The controls of the page, whose entries are read as an address is, and files to download."""

import json
from collections.abc import Callable
from functools import partial

from ringloom.codegen import TARGETS, emit
from ringloom.comparison import PASSES
from ringloom.explore.choices import Choices
from ringloom.explore.view import planned, predicted
from ringloom.planner.files import dumps
from ringloom.planner.schedules import SCHEDULES
from ringloom.simulator.chrome_trace import trace
from ringloom.simulator.hardware import machines

LABELS = {
    "seq": "tokens",
    "kv_seq": "key tokens, if not as many",
    "heads": "query heads",
    "kv_heads": "key-value heads",
    "head_dim": "elements of a head",
    "v_head_dim": "elements of a value head",
    "sinks": "a sink per query head",
    "overlap": "transfers overlap compute",
    "stragglers": "stragglers, such as 3=0.5",
    "slow_links": "slow links, such as 6-7=0.1",
    "topology": "topology, such as torus:2x4",
    "placement": "place of each rank, such as 0,2,1,3",
    "buffers": "receive buffers, such as 2",
    "share": "share of a chip per transfer",
    "launch": "seconds of a kernel's launch",
}
OPTIONS = {"schedule": SCHEDULES, "hardware": machines(), "pass": PASSES}  # of lists


# ---- files: the plan, the trace, the program


def plan_file(choices: Choices) -> str:
    """A plan file, of a pair for both passes."""
    return dumps(planned(choices.schedule, choices.work, choices.ranks, choices.pass_))


def trace_file(choices: Choices) -> str:
    """A Chrome trace of the prediction."""
    return json.dumps(trace(predicted(choices).prediction), separators=(",", ":"))


def program(choices: Choices, target: str) -> str:
    """The emitted program, forward and backward whatever pass is shown."""
    return emit(planned(choices.schedule, choices.work, choices.ranks, "both"), target)


FILES: dict[str, tuple[str, Callable[[Choices], str]]] = {  # how their names end, and their texts
    "plan": ("plan.json", plan_file),
    "trace": ("trace.json", trace_file),
    **{f"{t} program": (f"{t}.py", partial(program, target=t)) for t in TARGETS},
}
