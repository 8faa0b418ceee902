"""The controls of the page, to and from choices."""

from typing import Any

import panel as pn

from planner.schedules import SCHEDULES
from ringloom.comparison import Passes
from ringloom.explore.choices import MOST_RANKS, PASSES, Choices
from simulator.hardware import presets

WIDGET_STYLE = """
:host { color: var(--ink); }
label, span { color: var(--ink); font-size: 14px; }
.bk-input, .bk-input-container select {
  background-color: var(--card); color: var(--ink); border-color: var(--soft); font-size: 15px;
}
.bk-btn, .bk-btn a {
  background-color: var(--card); color: var(--ink); border-color: var(--soft); font-size: 15px;
}
select.bk-input {
  background-image: linear-gradient(45deg, transparent 50%, #7f8a94 50%),
    linear-gradient(135deg, #7f8a94 50%, transparent 50%);
  background-position: calc(100% - 14px) 50%, calc(100% - 9px) 50%;
  background-size: 5px 5px; background-repeat: no-repeat;
}
.bk-spin-btn { filter: invert(50%); }
.bk-slider-title, .bk-slider-value { color: var(--ink); font-size: 15px; }
.noUi-target { background-color: var(--idle); border-color: var(--soft); }
.noUi-connect { background-color: var(--busy); }
"""
FULL = {"sizing_mode": "stretch_width", "stylesheets": [WIDGET_STYLE], "margin": 0}
POWERS = [f"{1 << n}k" for n in range(2, 10)] + ["1M", "2M", "4M", "8M", "16M"]


class Controls:
    """Widgets by name, in the order of the page."""

    def __init__(self) -> None:
        number = {"start": 1, "step": 1, **FULL}
        self.schedule = pn.widgets.Select(label="schedule", options=list(SCHEDULES), **FULL)
        self.ranks = pn.widgets.IntInput(label="ranks", end=MOST_RANKS, **number)
        self.seq = pn.widgets.AutocompleteInput(
            label="tokens", options=POWERS, restrict=False, min_characters=1, **FULL
        )
        self.mask = pn.widgets.TextInput(label="mask", **FULL)
        self.heads = pn.widgets.IntInput(label="query heads", end=1024, **number)
        self.kv_heads = pn.widgets.IntInput(label="key-value heads", end=1024, **number)
        self.hardware = pn.widgets.Select(label="hardware", options=list(presets()), **FULL)
        self.pass_ = pn.widgets.Select(label="pass", options=list(PASSES), **FULL)
        self.overlap = pn.widgets.Checkbox(label="transfers overlap compute", **FULL)
        for widget in self.widgets.values():
            widget._debounce = 1  # milliseconds rather than 50: a choice is one change

    @property
    def widgets(self) -> dict[str, Any]:
        """Every widget under the name of its choice."""
        return dict(vars(self))

    def say(self, choices: Choices) -> None:
        """Set the controls to choices; a schedule with parameters joins the list."""
        if choices.schedule not in self.schedule.options:
            self.schedule.options = [*SCHEDULES, choices.schedule]
        for name, widget in self.widgets.items():
            widget.value = getattr(choices, name)

    @property
    def choices(self) -> Choices:
        """Read the controls; raises RingloomError for invalid values."""
        passes: Passes = self.pass_.value
        return Choices(
            schedule=self.schedule.value,
            ranks=self.ranks.value or 0,
            seq=self.seq.value or "",
            mask=self.mask.value,
            heads=self.heads.value or 0,
            kv_heads=self.kv_heads.value or 0,
            hardware=self.hardware.value,
            pass_=passes,
            overlap=self.overlap.value,
        )
