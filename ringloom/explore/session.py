"""One open page: controls that redraw the pictures, and a URL that restores them.

Results come with the entries that they belong to (`shown`); the page compares these with its
controls, and dims results of other entries.

An answer has stages and is dropped when an entry changes: of a burst only the last one is drawn.
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
from ringloom.explore.controls import FILES, LABELS, OPTIONS, RARE, unfolded
from ringloom.explore.gate import guard as guard
from ringloom.explore.view import MOST_LANES, View, compared, finding
from ringloom.planner.errors import RingloomError
from ringloom.report import SCRIPTS, asset
from ringloom.simulator.pictures import FEW

PAGE = Path(__file__).parent / "page"
STYLES = asset("style.css") + asset("explore.css", PAGE)
BEHAVIOUR = "".join(map(asset, SCRIPTS)) + asset("explore.js", PAGE)
AT_ONCE = 64  # ranks up to which a page opens complete
WORDS = (
    *("title", "finding", "trouble", "working", "skipped", "summary", "progress"),
    *("shown", "command", "python", *(f"wrong-{name}" for name in Choices().texts())),
)


class Session:
    """One open page."""

    def __init__(self) -> None:
        self.view, self.asked = View(), ColumnDataSource(name="asked")
        self.words = Words(*WORDS)
        self.table, self.turns = Table(self.words), Turns()
        style = asset("widgets.css", PAGE)
        self.every = pn.widgets.Checkbox(label="all ranks", stylesheets=[style], margin=0)
        self.shown = Choices()
        self.wanted, self.file = (ColumnDataSource(name=name) for name in ("wanted", "file"))
        opening = self._begin()
        self.asked.on_change("data", self._entries_changed)
        self.wanted.on_change("data", self._send_file)
        # A tag of a picture, so that they are sent to the browser.
        self.view.stepper.tiles.tags = [self.words.source, self.asked, self.wanted, self.file]
        draw_times = self.view.show_times
        self.every.param.watch(lambda event: draw_times(self.shown, event.new), "value")
        pn.state.onload(lambda: self.turns.begin(opening))

    def _begin(self) -> Stages:
        """Draws the choices of the URL; if it is invalid, the defaults with messages.

        Returns the remaining stages. With many ranks these draw everything, and the page opens with
        the defaults.
        """
        query = {k: v[0].decode(errors="replace") for k, v in pn.state.session_args.items() if v}
        try:
            choices, wrong = from_query(query), {}
            drawn = choices if choices.ranks <= AT_ONCE else Choices()
            self._draw(drawn)
            texts = choices.texts()
        except RingloomError as error:
            texts = entries(query)
            wrong = error.at if isinstance(error, ChoiceError) else {"schedule": str(error)}
            self._draw(choices := (drawn := Choices()))
        self.asked.data = {name: [text] for name, text in texts.items()}
        self._show_errors(wrong)
        return self.table.fill() if drawn == choices else self._answer(choices, texts)

    def _draw(self, choices: Choices) -> None:
        """Draws everything but the rows of other schedules; raises PlanError as planning does."""
        for _ in self._drawing(choices, choices.texts()):
            pass

    @property
    def texts(self) -> dict[str, str]:
        """Returns the text of each control, valid or not."""
        return {name: text for name, (text,) in self.asked.data.items()}

    def _entries_changed(self, _name: str, _before: Any, _now: Any) -> None:
        """Begins an answer, or shows at each invalid entry why it is invalid."""
        try:
            self.turns.begin(self._answer(from_query(self.texts), self.texts))
        except ChoiceError as error:
            self.turns.begin(iter(()))
            self._show_errors(error.at)

    def _answer(self, choices: Choices, texts: dict[str, str]) -> Stages:
        """Draws, then adds the rows of other schedules."""
        try:
            yield from self._drawing(choices, texts)
        except RingloomError as error:
            self._show_errors({"schedule": str(error)})
            return
        if pn.state.location is not None:
            pn.state.location.search = choices.address.rstrip("?")
        yield from self.table.fill()

    def _drawing(self, choices: Choices, texts: dict[str, str]) -> Stages:
        """Sends three messages, each as soon as possible; raises RingloomError before the first.

        The last one contains the finding, for which the ring is predicted too.
        """
        what = f"{choices.schedule} on {choices.ranks} ranks"
        self.words.say(working=f"planning {escape(what)} ...", progress="")
        yield 1
        with pn.io.hold():
            skipped = escape(self.view.show_plan(choices).skipped)
            self.words.say(skipped=skipped, shown="", working=f"predicting {escape(what)} ...")
        yield 1
        with pn.io.hold():
            self.view.show_times(choices, self.every.value)
        yield 1
        with pn.io.hold():
            self._draw_finding(choices)
            self._show_errors({})
            self.shown = choices
            self.every.visible = FEW < choices.ranks <= MOST_LANES
            self.words.say(shown=escape(json.dumps(texts), quote=False))

    def _draw_finding(self, choices: Choices) -> None:
        comparison = compared(choices)
        texts = {"title": comparison.title, "finding": finding(choices, comparison)}
        texts |= {"command": choices.command, "python": choices.python}
        self.words.say(**{name: escape(text) for name, text in texts.items()})
        self.table.take(choices, comparison.rows)

    def _send_file(self, _name: str, _before: Any, wanted: Any) -> None:
        """Sends a file to the browser, or says why not: a target may refuse a plan."""
        ending, write = FILES[wanted["name"][0]]
        try:
            text = write(self.shown)
        except ValueError as error:
            self._show_trouble(f"no {wanted['name'][0]}: {error}")
            return
        self._show_trouble("")
        schedule = self.shown.schedule.replace(":", "-").replace("=", "")
        self.file.data = {"name": [f"{schedule}-{ending}"], "text": [text]}

    def _show_trouble(self, wrong: str) -> None:
        self.words.say(trouble=_alert(wrong))

    def _show_errors(self, wrong: dict[str, str]) -> None:
        """Shows a message at each invalid entry and clears all others."""
        said = {name: _alert(wrong.get(name, "")) for name in self.texts}
        self.words.say(
            trouble="", working="", **{f"wrong-{name}": html for name, html in said.items()}
        )

    def page(self) -> Any:
        """Returns the template with its panels and variables."""
        base = asset("page.html", PAGE)
        template = pn.Template(base, nb_template="{% extends base %}", location=True)
        template.add_panel("every", self.every)
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
            "unfolded": unfolded(self.texts),
            "files": FILES,
        }
        for name, value in variables.items():
            template.add_variable(name, value)
        return template


def _alert(wrong: str) -> str:
    return f'<p role="alert">{escape(wrong)}</p>' if wrong else ""
