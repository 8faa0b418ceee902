"""The controls of the page: entries as text, to be read as an address is, and files to download."""

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
OPTIONS = {"schedule": SCHEDULES, "hardware": presets(), "pass": PASSES}
WORDS = {True: "on", False: "off"}


class Controls:
    """Widgets by the names of their choices, in the order of the page."""

    def __init__(self) -> None:
        self.widgets = {name: _widget(name, text) for name, text in Choices().texts().items()}
        for widget in self.widgets.values():
            widget._debounce = 1  # milliseconds rather than 50: a choice is one change

    def say(self, texts: dict[str, str]) -> None:
        """Set the controls; a schedule with parameters joins the list."""
        if texts["schedule"] not in (schedule := self.widgets["schedule"]).options:
            schedule.options = [*SCHEDULES, texts["schedule"]]
        for name, widget in self.widgets.items():
            ticked = isinstance(widget, pn.widgets.Checkbox)
            widget.value = texts[name] == "on" if ticked else texts[name]

    @property
    def texts(self) -> dict[str, str]:
        """The entry of each control, right or wrong."""
        return {name: WORDS.get(one.value, one.value) for name, one in self.widgets.items()}


def _widget(name: str, text: str) -> Any:
    """Returns a list of options, a tick or a field of text."""
    about = {"label": LABELS.get(name, name), **FULL}
    if name in OPTIONS:
        return pn.widgets.Select(options=list(OPTIONS[name]), **about)
    return pn.widgets.Checkbox(**about) if text in WORDS.values() else pn.widgets.TextInput(**about)


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
