"""Numbers along an axis that take as much room as each other, whatever they are."""

from bokeh.models import CustomJSTickFormatter


def padded(characters: int) -> CustomJSTickFormatter:
    """Numbers after blanks as wide as digits: others need not move the picture beside them."""
    code = f'return String(Number(tick.toPrecision(6))).padStart({characters}, "\\u2007")'
    return CustomJSTickFormatter(code=code)
