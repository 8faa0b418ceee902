"""An open page: controls that redraw the pictures, and a URL that restores them.

Results include the entries that they belong to (`shown`); the page compares these with its
controls, and dims results of other entries.

An answer has stages, and ends when an entry changes; of several fast changes, only the last is
answered.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

import panel as pn
from bokeh.models import ColumnDataSource
from markupsafe import Markup

from ringloom.explore.answers import Stages, Table, Turns, Words
from ringloom.explore.choices import ChoiceError, Choices, entries, from_query
from ringloom.explore.controls import FILES, LABELS, OPTIONS, RARE, has_rare_option
from ringloom.explore.gate import guard as guard
from ringloom.explore.view import MOST_LANES, View, compare_with_ring, finding
from ringloom.planner.errors import RingloomError
from ringloom.report import SCRIPTS, asset
from ringloom.simulator.pictures import FEW

PAGE = Path(__file__).parent / "page"
STYLES = asset("style.css") + asset("explore.css", PAGE)
BEHAVIOUR = "".join(map(asset, SCRIPTS)) + asset("explore.js", PAGE)
MOST_AT_OPENING = 64  # ranks; with more, the page opens with the defaults
WORDS = (
    *("title", "finding", "trouble", "working", "skipped", "summary", "progress"),
    *("shown", "command", "python", *(f"wrong-{name}" for name in Choices().texts())),
)


class Session:
    """An open page."""

    def __init__(self) -> None:
        self.view, self.entries = View(), ColumnDataSource(name="entries")
        self.words = Words(*WORDS)
        self.table, self.turns = Table(self.words), Turns()
        style = asset("widgets.css", PAGE)
        self.all_ranks = pn.widgets.Checkbox(label="all ranks", stylesheets=[style], margin=0)
        self.shown = Choices()
        self.request, self.file = (ColumnDataSource(name=name) for name in ("request", "file"))
        first_stages = self._begin()
        self.entries.on_change("data", self._entries_changed)
        self.request.on_change("data", self._send_file)
        # Only models that a picture refers to are sent to the browser.
        self.view.stepper.tiles.tags = [self.words.source, self.entries, self.request, self.file]
        draw_times = self.view.show_times
        self.all_ranks.param.watch(lambda event: draw_times(self.shown, event.new), "value")
        pn.state.onload(lambda: self.turns.begin(first_stages))

    def _begin(self) -> Stages:
        """Draws the choices of the URL, or the defaults with messages if the URL is invalid.

        Returns the remaining stages. With many ranks the page opens with the defaults, and the
        stages draw everything.
        """
        query = {k: v[0].decode(errors="replace") for k, v in pn.state.session_args.items() if v}
        try:
            choices, messages = from_query(query), dict[str, str]()
            first = choices if choices.ranks <= MOST_AT_OPENING else Choices()
            self._draw(first)
            texts = choices.texts()
        except RingloomError as error:
            texts = entries(query)
            messages = {"schedule": str(error)}
            if isinstance(error, ChoiceError):
                messages = error.messages
            self._draw(choices := (first := Choices()))
        self.entries.data = {name: [text] for name, text in texts.items()}
        self._show_errors(messages)
        return self.table.fill() if first == choices else self._answer(choices, texts)

    def _draw(self, choices: Choices) -> None:
        """Draws all but the rows of other schedules; raises PlanError as planning does."""
        for _ in self._draw_in_stages(choices, choices.texts()):
            pass

    @property
    def texts(self) -> dict[str, str]:
        """Returns the text of each control, valid or not."""
        return {name: text for name, (text,) in self.entries.data.items()}

    def _entries_changed(self, _name: str, _old: Any, _new: Any) -> None:
        """Begins an answer, or shows a message at each invalid entry."""
        try:
            self.turns.begin(self._answer(from_query(self.texts), self.texts))
        except ChoiceError as error:
            self.turns.begin(iter(()))
            self._show_errors(error.messages)

    def _answer(self, choices: Choices, texts: dict[str, str]) -> Stages:
        """Draws the pictures, then adds the rows of other schedules."""
        try:
            yield from self._draw_in_stages(choices, texts)
        except RingloomError as error:
            self._show_errors({"schedule": str(error)})
            return
        if pn.state.location is not None:
            pn.state.location.search = choices.address.rstrip("?")
        yield from self.table.fill()

    def _draw_in_stages(self, choices: Choices, texts: dict[str, str]) -> Stages:
        """Draws the plan, the predicted times, and the finding, each as soon as possible.

        Raises RingloomError before anything is drawn. The finding also needs a prediction of ring.
        """
        subject = escape(f"{choices.schedule} on {choices.ranks} ranks")
        self.words.update(working=f"planning {subject} ...", progress="")
        yield 1
        with pn.io.hold():
            skipped = escape(self.view.show_plan(choices).skipped)
            self.words.update(skipped=skipped, shown="", working=f"predicting {subject} ...")
        yield 1
        with pn.io.hold():
            self.view.show_times(choices, self.all_ranks.value)
        yield 1
        with pn.io.hold():
            self._draw_finding(choices)
            self._show_errors({})
            self.shown = choices
            self.all_ranks.visible = FEW < choices.ranks <= MOST_LANES
            self.words.update(shown=escape(json.dumps(texts), quote=False))

    def _draw_finding(self, choices: Choices) -> None:
        comparison = compare_with_ring(choices)
        texts = {"title": comparison.title, "finding": finding(choices, comparison)}
        texts |= {"command": choices.command, "python": choices.python}
        self.words.update(**{name: escape(text) for name, text in texts.items()})
        self.table.start(choices, comparison.rows)

    def _send_file(self, _name: str, _old: Any, request: Any) -> None:
        """Sends a file to the browser, or shows the error if the target refuses the plan."""
        name = request["name"][0]
        ending, write = FILES[name]
        try:
            text = write(self.shown)
        except ValueError as error:
            self.words.update(trouble=_alert(f"no {name}: {error}"))
            return
        self.words.update(trouble="")
        schedule = self.shown.schedule.replace(":", "-").replace("=", "")
        self.file.data = {"name": [f"{schedule}-{ending}"], "text": [text]}

    def _show_errors(self, messages: dict[str, str]) -> None:
        """Shows a message at each invalid entry, and clears all other messages."""
        alerts = {f"wrong-{name}": _alert(messages.get(name, "")) for name in self.texts}
        self.words.update(trouble="", working="", **alerts)

    def page(self) -> Any:
        """Returns the template with its panels and variables."""
        base = asset("page.html", PAGE)
        template = pn.Template(base, nb_template="{% extends base %}", location=True)
        template.add_panel("all_ranks", self.all_ranks)
        figures = {
            "tiles": self.view.stepper.tiles,
            "ways": self.view.stepper.ways,
            "timeline": self.view.timeline.figure,
            "load": self.view.load.figure,
            "links": self.view.links.figure,
            "memory": self.view.memory.figure,
        }
        for name, figure in figures.items():
            pane = pn.pane.Bokeh(figure, sizing_mode="stretch_width", margin=0)
            template.add_panel(name, pane)
        variables: dict[str, Any] = {
            "words": {name: Markup(self.words[name]) for name in WORDS},
            **{name: asset(f"{name}.html") for name in ("tiles_lead", "times_lead", "steps")},
            "style": STYLES,
            "behaviour": BEHAVIOUR,
            "texts": self.texts,
            "labels": LABELS,
            "options": OPTIONS,
            "rare": RARE,
            "unfolded": has_rare_option(self.texts),
            "files": FILES,
        }
        for name, value in variables.items():
            template.add_variable(name, value)
        return template


def _alert(message: str) -> str:
    return f'<p role="alert">{escape(message)}</p>' if message else ""
