"""Renders a comparison as one HTML file that needs no network."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bokeh
from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import Range1d
from markupsafe import Markup, escape

import ringloom
from ringloom.comparison import Comparison
from ringloom.planner.files.digest import digest
from ringloom.report import SCRIPTS, asset
from ringloom.report.facts.recorded import Recorded, matching_case
from ringloom.report.facts.tiles import tables
from ringloom.report.pictures.stepper import StepperPicture
from ringloom.report.pictures.timeline import TimelinePicture
from ringloom.report.pictures.totals import LoadPicture, MemoryPicture, TrafficPicture, line_style
from ringloom.report.summary import TEMPLATES, summary
from ringloom.rows import Row
from ringloom.simulator.facts import (
    Usage,
    bars_of,
    by_nodes,
    has_rows,
    over_average,
    traffic_of,
    usage,
    work_of,
)
from ringloom.simulator.pictures import FEW
from ringloom.trials import Case
from ringloom.views.units import seconds, size, times

MAX_RATIO = 3  # the time axis of a run is scaled if it differs more from its prediction
BOKEH = Path(bokeh.__file__).parent
Panel = dict[str, Any]  # variables of one schedule in the template


def page(
    comparison: Comparison, run: Recorded | None = None, command: str = "", all_ranks: bool = False
) -> str:
    """Returns the report as HTML; a recorded `run` is drawn below the prediction of its plans.

    With many ranks, timelines show the busiest, the least busy, the median and the first rank of
    each node, unless `all_ranks` is set. The footer shows `command`, if given, and the digests of
    the plans.

    Raises RingloomError if none of the plans is that of the run.
    """
    cases, figures = comparison.cases, dict[str, Any]()
    run_case = matching_case(comparison, run) if run else None
    scale = _scale(run_case.row, run) if run and run_case else 1.0
    end = max([row.makespan_s for row in comparison.rows] + ([run.makespan * scale] if run else []))
    axis = Range1d(0, 1e3 * end or 1.0, name="seconds", bounds="auto")
    passes = [(case.row.schedule, plan) for case in cases for plan in case.plans]
    if comparison.pass_ == "both":
        passes = [(f"{name} {plan.pass_}", plan) for name, plan in passes]
    facts, skipped = tables(passes)
    if facts:
        stepper = StepperPicture(comparison.ranks)
        stepper.show(facts)
        figures |= {"tiles": stepper.tiles, "ways": stepper.ways}
    content = {
        "timelines": _timelines(comparison, run_case, run, scale, axis, all_ranks),
        "loads": _loads(cases),
        "links": _links(cases),
    }
    panels = [panel for group in content.values() for panel in group]
    figures |= {panel["figure"].name: panel["figure"] for panel in panels}
    memory = _memory(comparison, axis, figures)
    # "<" could end the script element.
    numbers = json.dumps({"rows": comparison.as_rows()}).replace("<", "\\u003c")
    document = Document()
    with document.models.freeze():  # otherwise bokeh walks all models again for each figure
        for figure in figures.values():
            document.add_root(figure)
    scripts, drawn = components(figures) if figures else ("", {})
    for panel in panels:
        panel["picture"] = Markup(drawn[panel["figure"].name])
    html: str = TEMPLATES.get_template("page.html").render(
        title=comparison.title,
        answer=_breakable(comparison.recommendation.answer),
        finding=comparison.why,
        summary=Markup(summary(comparison.rows, comparison.refused)),
        skipped=skipped,
        pictures={name: Markup(drawn[name]) for name in ("tiles", "ways") if facts},
        memory=Markup(drawn["memory"]) if memory else "",
        legend=memory,
        run=_describe_run(comparison, run_case.row, run, scale) if run and run_case else "",
        few=comparison.ranks > FEW and not all_ranks,
        command=command,
        digests=[(case.row.schedule, digest(case.plans)) for case in cases],
        version=ringloom.__version__,
        numbers=Markup(numbers),
        style=Markup(asset("style.css")),
        behaviour=Markup("".join(map(asset, (*SCRIPTS, "page.js")))),
        library=Markup(_library()),
        scripts=Markup(scripts),
        **content,
    )
    return html


def _breakable(text: str) -> Markup:
    """Returns a text as HTML in which schedules may wrap before a parameter."""
    return Markup(re.sub(r"(?=:\S)", "<wbr>", escape(text)))


def _library() -> str:
    """Returns BokehJS; bokeh.resources would load it from the network once panel is imported."""
    script = (BOKEH / "server/static/js/bokeh.min.js").read_text(encoding="utf-8")
    return "<script>" + script.replace("</script", "<\\/script") + "</script>"


def _timelines(
    comparison: Comparison,
    run_case: Case | None,
    run: Recorded | None,
    scale: float,
    axis: Range1d,
    all_ranks: bool,
) -> list[Panel]:
    panels = []
    for number, case in enumerate(comparison.cases):
        ranks = case.prediction.representatives(comparison.ranks if all_ranks else FEW)
        bars = bars_of(case.prediction, ranks)
        case_run = run if case is run_case else None
        picture = TimelinePicture(f"timeline-{number}", axis)
        figure = picture.show(bars, comparison.ranks, ranks, case_run, scale, case.row.makespan_s)
        words = _describe_time(case, bool(bars))
        words += f"; measured {seconds(case_run.makespan)}" if case_run else ""
        panels.append({"title": case.row.schedule, "words": words, "figure": figure})
    return panels


def _describe_time(case: Case, has_bars: bool) -> str:
    words = f"{seconds(case.row.makespan_s)}, {case.row.idle_fraction:.0%} idle"
    if not has_bars:
        return f"{words}; the plan is too large to draw its timeline"
    merged = "; one bar per step, because the plan has too many rows"
    return words if has_rows(case.prediction) else words + merged


def _scale(row: Row, run: Recorded) -> float:
    """Returns 1, or the factor that gives a run the length of its very different prediction."""
    ratio = row.makespan_s / (run.makespan or 1.0)
    return 1.0 if 1 / MAX_RATIO <= ratio <= MAX_RATIO else ratio


def _describe_run(comparison: Comparison, row: Row, run: Recorded, scale: float) -> str:
    """Returns a sentence that compares a recorded run with its prediction."""
    hardware = f" on {run.hardware}" if run.hardware else ""
    scaling = "" if scale == 1 else f" Its time axis is scaled by {scale:.3g}."
    return (
        f"A recorded run of {row.schedule}{hardware} is drawn below its prediction, hatched. It"
        f" took {seconds(run.makespan)}, {run.makespan / row.makespan_s:.2f}x the"
        f" {seconds(row.makespan_s)} predicted for {comparison.hardware}.{scaling}"
    )


def _loads(cases: Sequence[Case]) -> list[Panel]:
    """Draws the load of each schedule, all on one scale."""
    works = [work_of(case.plans) for case in cases]
    highest, panels = max(over_average(work).max() for work in works), list[Panel]()
    for number, (case, work) in enumerate(zip(cases, works, strict=True)):
        figure = LoadPicture(f"load-{number}").show(work, highest)
        panels.append({"title": case.row.schedule, "words": _describe_load(case), "figure": figure})
    return panels


def _links(cases: Sequence[Case]) -> list[Panel]:
    """Draws a heat map of traffic for each schedule, all on one scale."""
    links = [by_nodes(traffic_of(case.plans), case.prediction.ranks_per_node) for case in cases]
    highest, panels = max(float(table.max()) for table, _ in links), list[Panel]()
    for number, (case, link) in enumerate(zip(cases, links, strict=True)):
        total, busiest = case.prediction.bytes_sent.sum(), case.row.max_bytes_sent
        words = f"{size(int(total))} in total, {size(busiest)} by the busiest sender"
        figure = TrafficPicture(f"links-{number}").show(*link, highest)
        panels.append({"title": case.row.schedule, "words": words, "figure": figure})
    return panels


def _describe_load(case: Case) -> str:
    busiest, lightest = case.row.busiest, case.row.lightest
    most, least = times(busiest.share), times(lightest.share)
    if most == least:
        return "every rank computes the average work"
    return (
        f"rank {busiest.rank} computes {most} the average work, rank {lightest.rank} only {least}"
    )


def _memory(comparison: Comparison, axis: Range1d, figures: Panel) -> list[Panel]:
    """Adds the picture of memory to `figures`, and returns its legend, an entry per line."""
    usages = [(case.row.schedule, usage(case.prediction)) for case in comparison.cases]
    lines: Sequence[tuple[str, Usage]] = [(name, used) for name, used in usages if used is not None]
    if lines:
        figures["memory"] = MemoryPicture(axis, len(lines)).show(lines)
    return [
        {
            "words": f"{name}: peak {size(used.peak)} on rank {used.rank}",
            **line_style(number, len(lines)),
        }
        for number, (name, used) in enumerate(lines)
    ]
