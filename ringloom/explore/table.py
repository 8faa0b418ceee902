"""The table of all schedules, filled in row by row."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ringloom.explore.answers import Stages, Words
from ringloom.explore.choices import Choices
from ringloom.explore.view import others, row_of
from ringloom.report.summary import summary
from ringloom.rows import Refusal, Row

QUIET = 100  # milliseconds without a change before the first row
POLL = 10  # milliseconds between looks at a row that is on its way
WORKERS = ThreadPoolExecutor(2)  # beside the server, which goes on answering; one row may be left


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
        rows = sorted(self.rows, key=lambda row: row.makespan_s)
        self.words.say(
            summary=summary(rows, self.refused, links, whole=not self.left), progress=progress
        )
