"""Colours that colour-blind readers can tell apart, on light and dark pages; labels repeat them.

Streams, schedules and up to eight ranks have the colours of Okabe and Ito ("Color Universal
Design"), except for two that are hard to see on white or black. More ranks, and amounts, have
cividis (Nuñez, Anderton, Renslow 2018), which looks the same to nearly everyone.
"""

from ringloom.simulator.pictures import COMPUTE, MERGE, SEND, WAIT

OKABE_ITO = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#6E28C8", "#6E2800"),
)
STREAM_COLOURS = {"compute": COMPUTE, "merge": MERGE, "send": SEND, "wait": WAIT}
# Lengths of dashes and gaps, in pixels.
DASHES: list[list[int]] = [[], [6], [2, 4, 6, 4], [2, 4], [6, 4, 2, 4]]
# The light theme; `page/theme.js` replaces these colours if the reader prefers dark.
PAPER, INK, COMING, DONE, IDLE = "#ffffff", "#1b1f24", "#dbe1e7", "#b4bcc5", "#ccd3da"


def rank_colours(ranks: int) -> list[str]:
    """Returns a colour per rank."""
    if ranks <= len(OKABE_ITO):
        return list(OKABE_ITO[:ranks])
    # The darkest fifth is hard to see on a dark page.
    return amount_colours(ranks + ranks // 4)[-ranks:]


def amount_colours(count: int) -> list[str]:
    """Returns `count` colours, for small to large amounts."""
    from bokeh.palettes import Cividis256, interp_palette

    return list(interp_palette(Cividis256, count))
