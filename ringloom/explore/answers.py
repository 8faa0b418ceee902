"""Answers in stages: one whenever the server has nothing else to do, until the next answer.

Their texts are HTML by the id of the element that holds it; the table of all schedules is filled in
row by row.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import panel as pn
from bokeh.models import ColumnDataSource, CustomJS

from ringloom.explore.choices import Choices
from ringloom.explore.view import others, row_of
from ringloom.report import asset
from ringloom.report.summary import summary
from ringloom.rows import Refusal, Row

Stages = Iterator[int]  # each stage yields the milliseconds until the next one
PAUSE = 10  # milliseconds: of changes that follow each other faster, only the last is answered
QUIET = 100  # milliseconds without a change before the first row
POLL = 10  # milliseconds between looks at a row that is on its way
WORKERS = ThreadPoolExecutor(2)  # beside the server, which goes on answering; one row may be left
CODE = asset("words.js", Path(__file__).parent / "page")


class Turns:
    """The stages of one answer; of another one that has begun since, nothing more is done."""

    def __init__(self) -> None:
        self.stages: Stages = iter(())

    def begin(self, stages: Stages) -> None:
        """Leave what is still to do, and begin another answer after a pause."""
        self.stages = stages
        self._wait(stages, PAUSE)

    def _go_on(self, stages: Stages) -> None:
        """Do the next stage, unless another answer has begun or the reader has left the page."""
        read = pn.state.curdoc.session_context.session.connection_count
        if read and stages is self.stages and (pause := next(stages, None)) is not None:
            self._wait(stages, pause)

    def _wait(self, stages: Stages, milliseconds: int) -> None:
        pn.state.curdoc.add_timeout_callback(partial(self._go_on, stages), milliseconds)


class Words:
    """Texts in the page's own elements: a widget for each would lay out the whole page."""

    def __init__(self, *names: str) -> None:
        self.source = ColumnDataSource(data={name: [""] for name in names}, name="words")
        self.source.js_on_change("patching", CustomJS(code=CODE))

    def __getitem__(self, name: str) -> str:
        """The HTML of one element."""
        text: str = self.source.data[name][0]
        return text

    def say(self, **texts: str) -> None:
        """Other HTML for some elements, each told by itself: messages may overtake each other."""
        new = {name: [(0, text)] for name, text in texts.items() if text != self[name]}
        if new:
            self.source.patch(new)


class Table:
    """Rows of the choices that are shown; `fill` adds those of other schedules."""

    def __init__(self, words: Words) -> None:
        self.words, self.choices = words, Choices()
        self.rows, self.refused = list[Row](), list[Refusal]()
        self.left, self.count = list[str](), 0

    def take(self, choices: Choices, rows: list[Row]) -> None:
        """Show the first rows of other choices."""
        self.choices, self.rows, self.refused = choices, list(rows), []
        self.left = others(choices)
        self.count = len(self.left)
        self._say()

    def fill(self) -> Stages:
        """Fill in the other rows, the first after a while without changes."""
        yield QUIET
        while self.left:
            row = WORKERS.submit(row_of, replace(self.choices, schedule=self.left[0]))
            while not row.done():
                yield POLL
            one = row.result()
            del self.left[0]
            if isinstance(one, Row):
                self.rows.append(one)
            else:
                self.refused.append(one)
            self._say()

    def _say(self) -> None:
        """Rows, the fastest first, and how many are still to come."""
        done, progress = self.count - len(self.left), ""
        if self.left:
            bar = f'<progress value="{done}" max="{self.count}"></progress>'
            progress = f"{bar} {done} of {self.count} other schedules compared"
        every: list[Row | Refusal] = [*self.rows, *self.refused]
        names = (one.schedule for one in every if one.schedule != self.choices.schedule)
        links = {n: replace(self.choices, schedule=n).address for n in names}
        rows = sorted(self.rows, key=lambda row: row.order)
        self.words.say(
            summary=summary(rows, self.refused, links, whole=not self.left), progress=progress
        )
