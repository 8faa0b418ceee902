"""Files to download: the plan, the trace, the program."""

import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import panel as pn

from codegen import TARGETS, emit
from planner.files import dumps
from ringloom.explore.choices import Choices
from ringloom.explore.controls import WIDGET_STYLE
from ringloom.explore.view import planned, predicted
from simulator.chrome_trace import trace


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
