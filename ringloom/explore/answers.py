"""Answers in stages: an idle server runs the next stage of the latest answer.

Texts are sent as HTML per element; the table of schedules is filled row by row.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import panel as pn
from bokeh.models import ColumnDataSource, CustomJS

from ringloom.explore.choices import Choices
from ringloom.explore.view import other_schedules, row_of
from ringloom.report import asset
from ringloom.report.summary import summary
from ringloom.rows import Refusal, Row

Stages = Iterator[int]  # each stage yields the milliseconds until the next one
PAUSE = 10  # milliseconds before an answer begins, so that fast changes get a single answer
QUIET = 100  # milliseconds without a change before the first row
POLL = 10  # milliseconds between checks for a finished row
WORKERS = ThreadPoolExecutor(2)  # while one finishes a row that is no longer needed
CODE = asset("words.js", Path(__file__).parent / "page")


class Turns:
    """Runs the stages of the latest answer."""

    def __init__(self) -> None:
        self.stages: Stages = iter(())

    def begin(self, stages: Stages) -> None:
        """Cancels the current answer, and begins another after a pause."""
        self.stages = stages
        self._schedule(stages, PAUSE)

    def _run_next(self, stages: Stages) -> None:
        """Runs the next stage, unless another answer has begun or the reader has left the page."""
        connections = pn.state.curdoc.session_context.session.connection_count
        if connections and stages is self.stages and (pause := next(stages, None)) is not None:
            self._schedule(stages, pause)

    def _schedule(self, stages: Stages, milliseconds: int) -> None:
        pn.state.curdoc.add_timeout_callback(partial(self._run_next, stages), milliseconds)


class Words:
    """The texts of elements of the page; updating a widget instead would lay out the page again."""

    def __init__(self, *names: str) -> None:
        self.source = ColumnDataSource(data={name: [""] for name in names}, name="words")
        self.source.js_on_change("patching", CustomJS(code=CODE))

    def __getitem__(self, name: str) -> str:
        """Returns the HTML of one element."""
        text: str = self.source.data[name][0]
        return text

    def update(self, **texts: str) -> None:
        """Sends the HTML of elements that changed; messages may arrive out of order."""
        changed = {name: [(0, text)] for name, text in texts.items() if text != self[name]}
        if changed:
            self.source.patch(changed)


class Table:
    """The rows of the current choices; `fill` adds those of other schedules."""

    def __init__(self, words: Words) -> None:
        self.words, self.choices = words, Choices()
        self.rows, self.refused = list[Row](), list[Refusal]()
        self.missing, self.count = list[str](), 0

    def start(self, choices: Choices, rows: list[Row]) -> None:
        """Shows the first rows of new choices."""
        self.choices, self.rows, self.refused = choices, list(rows), []
        self.missing = other_schedules(choices)
        self.count = len(self.missing)
        self._show()

    def fill(self) -> Stages:
        """Adds the rows of other schedules, after QUIET milliseconds without a change."""
        yield QUIET
        while self.missing:
            job = WORKERS.submit(row_of, replace(self.choices, schedule=self.missing[0]))
            while not job.done():
                yield POLL
            row = job.result()
            del self.missing[0]
            if isinstance(row, Row):
                self.rows.append(row)
            else:
                self.refused.append(row)
            self._show()

    def _show(self) -> None:
        """Shows the rows, the fastest first, and the number of missing rows."""
        done, progress = self.count - len(self.missing), ""
        if self.missing:
            bar = f'<progress value="{done}" max="{self.count}"></progress>'
            progress = f"{bar} {done} of {self.count} other schedules compared"
        shown: list[Row | Refusal] = [*self.rows, *self.refused]
        names = (row.schedule for row in shown if row.schedule != self.choices.schedule)
        links = {name: replace(self.choices, schedule=name).address for name in names}
        rows = sorted(self.rows, key=lambda row: row.order)
        table = summary(rows, self.refused, links, complete=not self.missing)
        self.words.update(summary=table, progress=progress)
