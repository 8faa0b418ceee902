"""Answers in stages: the server runs one whenever it is idle, until the next answer begins.

Texts are HTML by element id; the table of all schedules is filled in row by row.
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
PAUSE = 10  # milliseconds: of changes closer to each other, only the last is answered
QUIET = 100  # milliseconds without a change before the first row
POLL = 10  # milliseconds between checks for a finished row
WORKERS = ThreadPoolExecutor(2)  # one may still compute a row that is no longer needed
CODE = asset("words.js", Path(__file__).parent / "page")


class Turns:
    """Runs the stages of the latest answer; earlier answers are dropped."""

    def __init__(self) -> None:
        self.stages: Stages = iter(())

    def begin(self, stages: Stages) -> None:
        """Drops the remaining stages, and begins another answer after a pause."""
        self.stages = stages
        self._wait(stages, PAUSE)

    def _go_on(self, stages: Stages) -> None:
        """Runs the next stage, unless another answer has begun or the reader has left the page."""
        read = pn.state.curdoc.session_context.session.connection_count
        if read and stages is self.stages and (pause := next(stages, None)) is not None:
            self._wait(stages, pause)

    def _wait(self, stages: Stages, milliseconds: int) -> None:
        pn.state.curdoc.add_timeout_callback(partial(self._go_on, stages), milliseconds)


class Words:
    """Texts in elements of the page; a widget for each would lay out the whole page again."""

    def __init__(self, *names: str) -> None:
        self.source = ColumnDataSource(data={name: [""] for name in names}, name="words")
        self.source.js_on_change("patching", CustomJS(code=CODE))

    def __getitem__(self, name: str) -> str:
        """Returns the HTML of one element."""
        text: str = self.source.data[name][0]
        return text

    def say(self, **texts: str) -> None:
        """Sends replacement HTML per element; messages may arrive out of order."""
        new = {name: [(0, text)] for name, text in texts.items() if text != self[name]}
        if new:
            self.source.patch(new)


class Table:
    """The rows of the current choices; `fill` adds those of other schedules."""

    def __init__(self, words: Words) -> None:
        self.words, self.choices = words, Choices()
        self.rows, self.refused = list[Row](), list[Refusal]()
        self.left, self.count = list[str](), 0

    def take(self, choices: Choices, rows: list[Row]) -> None:
        """Shows the first rows of new choices."""
        self.choices, self.rows, self.refused = choices, list(rows), []
        self.left = others(choices)
        self.count = len(self.left)
        self._say()

    def fill(self) -> Stages:
        """Adds the other rows, the first one after QUIET milliseconds without a change."""
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
        """Shows the rows, the fastest first, and how many are missing."""
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
