"""Answers in stages: one whenever the server has nothing else to do, until the next answer."""

from collections.abc import Iterator
from functools import partial

import panel as pn

Stages = Iterator[int]  # each stage yields the milliseconds until the next one
PAUSE = 10  # milliseconds: of changes that follow each other faster, only the last is answered


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
