"""Answers in stages: one whenever the server has nothing else to do, until the next answer.

Their texts are HTML by the id of the element that holds it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import panel as pn
from bokeh.models import ColumnDataSource, CustomJS

from ringloom.report.assets import asset

Stages = Iterator[int]  # each stage yields the milliseconds until the next one
PAUSE = 10  # milliseconds: of changes that follow each other faster, only the last is answered
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
