"""Labels and options of the page's controls, and its files for download."""

import json
from collections.abc import Callable, Mapping
from functools import partial

from ringloom.codegen import TARGETS, emit
from ringloom.comparison import PASSES
from ringloom.explore.choices import DEFAULT_TO, SCENARIO, Choices, entries
from ringloom.explore.view import make_plans, predict
from ringloom.planner.files import dumps
from ringloom.planner.schedules import SCHEDULES
from ringloom.simulator.chrome_trace import trace
from ringloom.simulator.hardware import machines

LABELS = {
    "seq": "tokens",
    "kv_seq": "key tokens (default: tokens)",
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
RARE = {*SCENARIO, "kv_seq", "v_head_dim", "sinks", "overlap"}  # folded while all are default
OPTIONS = {"schedule": SCHEDULES, "hardware": machines(), "pass": PASSES}  # of select boxes


def has_rare_option(texts: Mapping[str, str]) -> bool:
    """Returns True if a rare option differs from its default."""
    defaults = entries({name: texts[name] for name in DEFAULT_TO.values()})
    return any(texts[name] != defaults[name] for name in RARE)


# ---- files: plan, trace, program


def plan_file(choices: Choices) -> str:
    """Returns the plan file, with two plans if the choice is both passes."""
    return dumps(make_plans(choices.schedule, choices.work, choices.ranks, choices.pass_))


def trace_file(choices: Choices) -> str:
    """Returns a Chrome trace of the prediction."""
    return json.dumps(trace(predict(choices).prediction), separators=(",", ":"))


def program(choices: Choices, target: str) -> str:
    """Returns the emitted program, with both passes whatever the choice is."""
    return emit(make_plans(choices.schedule, choices.work, choices.ranks, "both"), target)


FILES: dict[str, tuple[str, Callable[[Choices], str]]] = {  # end of the file name, text
    "plan": ("plan.json", plan_file),
    "trace": ("trace.json", trace_file),
    **{f"{t} program": (f"{t}.py", partial(program, target=t)) for t in TARGETS},
}
