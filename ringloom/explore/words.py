"""The texts of the page: HTML by the id of the element that holds it."""

from pathlib import Path

from bokeh.models import ColumnDataSource, CustomJS

from ringloom.report.assets import asset

CODE = asset("words.js", Path(__file__).parent / "page")


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
