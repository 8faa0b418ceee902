"""The controls of the page, whose entries are read as an address is, and files to download."""

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import panel as pn

from codegen import TARGETS, emit
from planner.files import dumps
from planner.schedules import SCHEDULES
from ringloom.comparison import PASSES
from ringloom.explore.choices import Choices
from ringloom.explore.view import planned, predicted
from ringloom.report import asset
from simulator.chrome_trace import trace
from simulator.hardware import presets

WIDGET_STYLE = asset("widgets.css", Path(__file__).parent / "page")
FULL = {"sizing_mode": "stretch_width", "stylesheets": [WIDGET_STYLE], "margin": 0}
LABELS = {
    "seq": "tokens",
    "heads": "query heads",
    "kv_heads": "key-value heads",
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
OPTIONS = {"schedule": SCHEDULES, "hardware": presets(), "pass": PASSES}  # of lists


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


def buttons(choices: Callable[[], Choices], told: Callable[[str], None]) -> dict[str, Any]:
    """Returns a button per file; `told` is called with an error message, or "" for none."""

    def content(name: str) -> io.StringIO:
        label, ending, write = files[name]
        try:
            text = write(choices())
        except ValueError as error:  # PlanError among them: a program may refuse what a plan allows
            told(f"no {label}: {error}")
            raise
        told("")
        schedule = choices().schedule.replace(":", "-").replace("=", "")
        made[name].filename = f"{schedule}-{ending}"
        return io.StringIO(text)

    files: dict[str, tuple[str, str, Callable[[Choices], str]]] = {
        "plan": ("plan", "plan.json", plan_file),
        "trace": ("trace", "trace.json", trace_file),
        **{t: (f"{t} program", f"{t}.py", partial(program, target=t)) for t in TARGETS},
    }
    made: dict[str, Any] = {
        name: pn.widgets.FileDownload(
            callback=partial(content, name),
            filename=ending,
            label=f"download {label}",
            stylesheets=[WIDGET_STYLE],
            margin=0,
        )
        for name, (label, ending, _) in files.items()
    }
    return made
