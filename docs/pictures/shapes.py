"""Writes shapes as SVG text, with the same bytes on every machine.

Ink and greys are readable on white and on black; the palette is colour-blind safe (Okabe and Ito).
"""

from collections.abc import Iterable

INK, FAINT, IDLE = "#757575", "#75757540", "#d9d9d9"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
LIGHT = ("#E69F00", "#CC79A7", "#56B4E9")  # these need dark text


def rect(x: float, y: float, width: float, height: float, fill: str, rounding: int = 0) -> str:
    """Returns a filled box."""
    corners = f' rx="{rounding}"' if rounding else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{corners}'
        f' fill="{fill}"/>'
    )


def text(
    x: float, y: float, words: str, size: int = 13, anchor: str = "start", fill: str = INK
) -> str:
    """Returns a text with its baseline at y and its anchor (start, middle or end) at x."""
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}"'
        f' text-anchor="{anchor}" fill="{fill}">{safe}</text>'
    )


def line(points: Iterable[tuple[float, float]], stroke: str = INK, width: float = 2) -> str:
    """Returns straight lines through the points."""
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{coordinates}" fill="none" stroke="{stroke}" stroke-width="{width:g}"/>'
    )


def cell(x: float, y: float, width: float, height: float, words: str, colour: int | None) -> str:
    """Returns a box with centred text, grey if `colour` is None."""
    if colour is None:
        fill, ink = INK, "#ffffff"
    else:
        fill = COLOURS[colour % len(COLOURS)]
        ink = "#000000" if fill in LIGHT else "#ffffff"
    box = rect(x, y, width, height, fill, 2)
    return box + text(x + width / 2, y + height / 2 + 5, words, 13, "middle", ink)


def drawing(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    """Returns the picture as SVG text; screen readers read the title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">'
    )
    return "\n".join([head, f"<title>{title}</title>", *shapes, "</svg>", ""])
