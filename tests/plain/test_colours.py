"""Colours that carry meaning side by side differ to every eye, in light and in dark."""

import re
from itertools import combinations

import numpy as np
import pytest
from bokeh.models import Range1d
from numpy.typing import NDArray

from ringloom.report import asset
from ringloom.report.pictures.palette import STREAM_COLOURS, amount_colours, rank_colours
from ringloom.report.pictures.timeline import HATCHES, TimelinePicture
from ringloom.report.pictures.totals import line_style
from ringloom.simulator.pictures import COMPUTE
from ringloom.simulator.timeline import STREAMS, Span

# Machado, Oliveira, Fernandes 2009: linear red, green and blue as others see them, at severity 1.
EYES = {
    "most": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "none": [[0.2126, 0.7152, 0.0722]] * 3,  # no colours: luminance alone
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = [0.9505, 1.0, 1.089]
SHAPE = "stream", "lane", "height", "left"
LEAST = 10.0  # CIE 1976 colour difference; 2.3 can just be noticed


def seen(colour: str, eye: str) -> NDArray[np.float64]:
    """CIELAB coordinates of a colour as an eye sees it."""
    channel = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)
    x, y, z = TO_XYZ @ np.clip(np.asarray(EYES[eye]) @ linear, 0, 1) / WHITE
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def alike(colours: list[str], eye: str) -> list[tuple[str, str]]:
    """Pairs that an eye can hardly tell apart."""
    return [
        (a, b)
        for a, b in combinations(colours, 2)
        if np.linalg.norm(seen(a, eye) - seen(b, eye)) < LEAST
    ]


def scheme(dark: bool) -> dict[str, str]:
    """Colours of the page by name, as its style sheet and its theme say."""
    blocks = re.findall(r":root \{(.*?)\}", asset("style.css"), re.S)
    names = dict(re.findall(r"--(\w+): (#\w+)", blocks[0]))
    if dark:
        names |= dict(re.findall(r"--(\w+): (#\w+)", blocks[1]))
    rest = re.findall(r'"(#\w+)"', asset("theme.js").split("[coming, done] = dark ?")[1])[:4]
    names["coming"], names["done"] = rest[:2] if dark else rest[2:]
    return names


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("dark", [False, True])
def test_colours_that_carry_meaning_differ(eye: str, dark: bool) -> None:
    page = scheme(dark)
    paper = page["paper"]
    if eye != "none":
        assert alike([*STREAM_COLOURS.values(), paper], eye) == []
        assert alike([*rank_colours(8), page["coming"], page["done"], paper], eye) == []
        for rank in rank_colours(64):
            for other in (page["coming"], page["done"], paper):
                assert alike([rank, other], eye) == []
    assert alike([page["coming"], page["done"], paper], eye) == []
    assert alike([page["busy"], page["idle"], page["ink"], paper], eye) == []
    assert alike([COMPUTE, paper], eye) == []
    least = amount_colours(256)[51 if dark else 204]
    assert alike([least, paper], eye) == []
    assert f"slice({'51' if dark else '0, 205'})" in asset("theme.js")


def test_bars_of_a_timeline_differ_without_colours_by_lane_height_and_hatches() -> None:
    """Tiles carry the number of their rank; lines of memory differ in dash and width."""
    bars = [Span(0, stream, stream, 0, n, n + 1.0) for n, stream in enumerate(STREAMS)]
    picture = TimelinePicture("timeline", Range1d(0, 9))
    picture.show(bars, 1, [0])
    data, merges = picture.source.data, picture.hatched[0].data["left"]
    looks = {
        STREAMS[kind]: (lane, height, left in merges)
        for kind, lane, height, left in zip(*map(data.get, SHAPE), strict=True)
    }
    assert len({looks[stream] for stream in STREAM_COLOURS}) == len(STREAM_COLOURS)
    assert [stream for stream in STREAM_COLOURS if looks[stream][2]] == ["merge"]
    for lines in range(1, 9):
        shapes = [
            (str(o["line_dash"]), o["line_width"])
            for o in (line_style(n, lines) for n in range(lines))
        ]
        assert len(set(shapes)) == lines


def test_each_hatching_is_one_pattern() -> None:
    """A browser makes a pattern for each bar of a column of patterns: a second for a thousand."""
    picture = TimelinePicture("timeline", Range1d(0, 1))
    patterns = [one.glyph.hatch_pattern for one in picture.figure.renderers]
    assert patterns == [None, *HATCHES, None]  # bars, hatchings, idle time


@pytest.mark.parametrize("eye", EYES)
def test_amounts_grow_lighter_to_every_eye(eye: str) -> None:
    lightness = [seen(colour, eye)[0] for colour in rank_colours(64)]
    assert np.diff(lightness).min() > 0


def test_colours_that_resemble_each_other_are_found() -> None:
    assert alike(["#E69F00", "#B8A900"], "most") == []
    assert alike(["#E69F00", "#B8A900"], "protanopia") == [("#E69F00", "#B8A900")]
