"""Colours: told apart by colour-blind eyes, in light and in dark, and never without words.

Streams and schedules: Okabe and Ito, "Color Universal Design", and two more for those of theirs
that resemble black, white or grey. More than eight ranks, and
amounts: cividis (Nuñez, Anderton, Renslow 2018), which looks alike to nearly all eyes.
"""

from ringloom.simulator.pictures import COMPUTE, MERGE, SEND, WAIT

OKABE_ITO = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#6E28C8", "#6E2800"),
)
STREAM_COLOURS = {"compute": COMPUTE, "merge": MERGE, "send": SEND, "wait": WAIT}
# Pixels of a line that are drawn, left out, drawn ...
DASHES: list[list[int]] = [[], [6], [2, 4, 6, 4], [2, 4], [6, 4, 2, 4]]
# The light theme; `page/theme.js` replaces these if the reader prefers dark.
PAPER, INK, COMING, DONE, IDLE = "#ffffff", "#1b1f24", "#dbe1e7", "#b4bcc5", "#ccd3da"


def rank_colours(ranks: int) -> list[str]:
    """A colour per rank."""
    if ranks <= len(OKABE_ITO):
        return list(OKABE_ITO[:ranks])
    # The darkest fifth would drown in a dark page.
    return amounts(ranks + ranks // 4)[-ranks:]


def amounts(count: int) -> list[str]:
    """`count` colours from little to much."""
    from bokeh.palettes import Cividis256, interp_palette

    return list(interp_palette(Cividis256, count))
