"""Draws the speedup of striped over ring training, published and predicted."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ringloom.figures.sheet import INK, LINE
from ringloom.report.pictures.palette import OKABE_ITO
from ringloom.reproduce.papers.striped import Row, predict_rows
from ringloom.views.units import length

MARKS = "osD^vP*X"
ACROSS = 4  # panels
Mesh = tuple[int, int]  # model parallel, sequence parallel


def panels_of(rows: Sequence[Row]) -> dict[tuple[str, str], dict[Mesh, list[Row]]]:
    """Groups rows by chip and model, then by mesh, sorted by length."""
    panels = dict[tuple[str, str], dict[Mesh, list[Row]]]()
    for row in sorted(rows, key=lambda r: (r.hardware, r.model, r.n_seq)):
        panel = panels.setdefault((row.hardware, row.model), {})
        panel.setdefault((row.model_parallel, row.sequence_parallel), []).append(row)
    return panels


def speedups() -> Figure:
    """Returns a figure with a panel per chip and model: predicted curves, published points."""
    by_model = panels_of(predict_rows())
    rows = -(-len(by_model) // ACROSS)
    figure = Figure(figsize=(7.0, 2.2 * rows + 0.4))
    panels = figure.subplots(rows, ACROSS, sharey=True, squeeze=False)
    for axes in panels.flat[len(by_model) :]:
        axes.set_axis_off()
    for axes, ((chip, model), meshes) in zip(panels.flat, by_model.items(), strict=False):
        _draw_panel(axes, meshes)
        axes.set_title(f"{chip}, {model}")
    for row in panels:
        row[0].set_ylabel("striped over ring")
    handles = [
        Line2D([], [], color=INK, lw=1.2, label="predicted"),
        Line2D(
            [], [], color=INK, lw=0, marker="o", ms=4, label="published (model x sequence parallel)"
        ),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False)
    figure.subplots_adjust(bottom=0.16, wspace=0.14, hspace=0.5, top=0.95, left=0.07, right=0.99)
    return figure


def _draw_panel(axes: Axes, meshes: Mapping[Mesh, Sequence[Row]]) -> None:
    for number, ((parallel, ranks), rows) in enumerate(sorted(meshes.items())):
        colour, mark = OKABE_ITO[number % len(OKABE_ITO)], MARKS[number % len(MARKS)]
        lengths = [row.n_seq for row in rows]
        axes.plot(lengths, [row.predicted_speedup for row in rows], color=colour, lw=1.2)
        measured = [(r.n_seq, r.measured_speedup) for r in rows if r.measured_speedup]
        axes.plot(
            *zip(*measured, strict=True), mark, color=colour, ms=4, label=f"{parallel} x {ranks}"
        )
    axes.axhline(1, color=LINE, lw=0.8, zorder=0)
    _set_token_ticks(axes, {row.n_seq for rows in meshes.values() for row in rows})
    axes.grid(color=LINE, lw=0.4, alpha=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=6.5, loc="upper left", handletextpad=0.1, borderaxespad=0.1)


def _set_token_ticks(axes: Axes, lengths: set[int]) -> None:
    """Sets ticks at every other power of two, so that labels do not overlap."""
    powers = [1 << n for n in range(13, 21) if min(lengths) <= 1 << n <= max(lengths)]
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.set_xticks(powers[::2], [length(t) for t in powers[::2]])
    axes.set_xlabel("tokens")
