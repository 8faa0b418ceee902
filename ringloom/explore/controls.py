"""Labels and options of the page's controls, and the files that it offers for download."""

import json
from collections.abc import Callable, Mapping
from functools import partial

from ringloom.codegen import TARGETS, emit
from ringloom.comparison import PASSES
from ringloom.explore.choices import LIKE, SCENARIO, Choices, entries
from ringloom.explore.view import planned, predicted
from ringloom.planner.files import dumps
from ringloom.planner.schedules import SCHEDULES
from ringloom.simulator.chrome_trace import trace
from ringloom.simulator.hardware import machines

LABELS = {
    "seq": "tokens",
    "kv_seq": "key tokens (default: as many)",
    "heads": "query heads",
    "kv_heads": "key-value heads",
    "head_dim": "head dimension",
    "v_head_dim": "head dimension of values",
    "sinks": "attention sink per query head",
    "overlap": "transfers overlap compute",
    "stragglers": "stragglers, e.g. 3=0.5",
    "slow_links": "slow links, e.g. 6-7=0.1",
    "topology": "topology, e.g. torus:2x4",
    "placement": "placement of ranks, e.g. 0,2,1,3",
    "buffers": "receive buffers, e.g. 2",
    "share": "share of a chip per transfer",
    "launch": "kernel launch latency [s]",
}
RARE = {*SCENARIO, "kv_seq", "v_head_dim", "sinks", "overlap"}  # folded away while all are default
OPTIONS = {"schedule": SCHEDULES, "hardware": machines(), "pass": PASSES}  # of select boxes


def unfolded(texts: Mapping[str, str]) -> bool:
    """Returns True if a rare option differs from its default."""
    usual = entries({like: texts[like] for like in LIKE.values()})
    return any(texts[name] != usual[name] for name in RARE)


# ---- files: plan, trace, program


def plan_file(choices: Choices) -> str:
    """Returns the plan file, with both plans of both passes."""
    return dumps(planned(choices.schedule, choices.work, choices.ranks, choices.pass_))


def trace_file(choices: Choices) -> str:
    """Returns a Chrome trace of the prediction."""
    return json.dumps(trace(predicted(choices).prediction), separators=(",", ":"))


def program(choices: Choices, target: str) -> str:
    """Returns the emitted program, always forward and backward."""
    return emit(planned(choices.schedule, choices.work, choices.ranks, "both"), target)


FILES: dict[str, tuple[str, Callable[[Choices], str]]] = {  # suffix of the name, and the text
    "plan": ("plan.json", plan_file),
    "trace": ("trace.json", trace_file),
    **{f"{t} program": (f"{t}.py", partial(program, target=t)) for t in TARGETS},
}
