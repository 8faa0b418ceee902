"""The table of all schedules: a row is filled in whenever the server has nothing else to do."""

from dataclasses import replace
from functools import partial
from urllib.parse import urlencode

import panel as pn

from ringloom.explore.choices import Choices
from ringloom.explore.view import others, row_of
from ringloom.explore.words import Words
from ringloom.report.summary import summary
from ringloom.rows import Refusal, Row

QUIET = 100  # milliseconds without a change before the first row


class Table:
    """Rows of the choices that are shown; `begin` fills in the others until `stop`."""

    def __init__(self, words: Words) -> None:
        self.words, self.choices = words, Choices()
        self.rows, self.refused = list[Row](), list[Refusal]()
        self.left, self.count = list[str](), 0
        self.turn = 0

    def take(self, choices: Choices, rows: list[Row]) -> None:
        """Show the first rows of other choices."""
        self.choices, self.rows, self.refused = choices, list(rows), []
        self.left = others(choices)
        self.count = len(self.left)
        self._say()

    def begin(self) -> None:
        """Fill in a row after a while without changes, and the others after it."""
        self.stop()
        self._wait(QUIET)

    def stop(self) -> None:
        """Leave the other rows as they are, whatever waits for its turn."""
        self.turn += 1

    def fill(self, turn: int) -> None:
        """Fill in the next row, unless something has changed since it was asked for."""
        if turn != self.turn:
            return
        one = row_of(replace(self.choices, schedule=self.left.pop(0)))
        if isinstance(one, Row):
            self.rows.append(one)
        else:
            self.refused.append(one)
        self._say()
        self._wait(1)

    def _wait(self, milliseconds: int) -> None:
        if self.left and self._is_read():
            pn.state.curdoc.add_timeout_callback(partial(self.fill, self.turn), milliseconds)

    def _is_read(self) -> bool:
        """Returns False once the reader has left the page."""
        return bool(pn.state.curdoc.session_context.session.connection_count)

    def _say(self) -> None:
        """Rows, the fastest first, and how many are still to come."""
        done, progress = self.count - len(self.left), ""
        if self.left:
            bar = f'<progress value="{done}" max="{self.count}"></progress>'
            progress = f"{bar} {done} of {self.count} other schedules compared"
        every: list[Row | Refusal] = [*self.rows, *self.refused]
        names = (one.schedule for one in every if one.schedule != self.choices.schedule)
        links = {name: self._link(name) for name in names}
        rows = sorted(self.rows, key=lambda row: row.makespan_s)
        self.words.say(
            summary=summary(rows, self.refused, links, whole=not self.left), progress=progress
        )

    def _link(self, schedule: str) -> str:
        return f"?{urlencode(replace(self.choices, schedule=schedule).query())}"
