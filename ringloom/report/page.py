"""Renders a comparison as one HTML file that needs no network."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bokeh
from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import Range1d
from markupsafe import Markup

import ringloom
from ringloom.comparison import Comparison
from ringloom.planner.files.digest import digest
from ringloom.report import SCRIPTS, asset
from ringloom.report.facts.recorded import Recorded, matching_case
from ringloom.report.facts.tiles import tables
from ringloom.report.pictures.stepper import StepperPicture
from ringloom.report.pictures.timeline import TimelinePicture
from ringloom.report.pictures.totals import LoadPicture, MemoryPicture, TrafficPicture, look_of
from ringloom.report.summary import TEMPLATES, summary
from ringloom.rows import Row
from ringloom.simulator.facts import (
    Usage,
    bars_of,
    by_nodes,
    over_average,
    traffic_of,
    usage,
    whole,
    work_of,
)
from ringloom.simulator.pictures import FEW
from ringloom.trials import Case
from ringloom.views.units import seconds, size, times

APART = 3  # ratio of a run to its prediction beyond which its time axis is scaled
BOKEH = Path(bokeh.__file__).parent
Panel = dict[str, Any]  # the variables of one schedule in the template


def page(
    compared: Comparison, run: Recorded | None = None, command: str = "", all_ranks: bool = False
) -> str:
    """Returns the report as HTML; a recorded `run` is drawn below the prediction of its plans.

    With many ranks, timelines show the busiest, the least busy, the median and the first rank of
    each node, or all ranks with `all_ranks`. The footer shows `command`, if given, and the digests
    of the plans.

    Raises RingloomError for a run of other plans.
    """
    cases, figures = compared.cases, dict[str, Any]()
    ran = matching_case(compared, run) if run else None
    scale = _scale(ran.row, run) if run and ran else 1.0
    end = max([row.makespan_s for row in compared.rows] + ([run.makespan * scale] if run else []))
    axis = Range1d(0, 1e3 * end or 1.0, name="seconds", bounds="auto")
    passes = [(case.row.schedule, plan) for case in cases for plan in case.plans]
    if compared.pass_ == "both":
        passes = [(f"{name} {plan.pass_}", plan) for name, plan in passes]
    facts, skipped = tables(passes)
    if facts:
        stepper = StepperPicture(compared.ranks)
        stepper.show(facts)
        figures |= {"tiles": stepper.tiles, "ways": stepper.ways}
    content = {
        "timelines": _timelines(compared, ran, run, scale, axis, all_ranks),
        "loads": _loads(cases),
        "links": _links(cases),
    }
    panels = [panel for group in content.values() for panel in group]
    figures |= {panel["figure"].name: panel["figure"] for panel in panels}
    memory = _memory(compared, axis, figures)
    numbers = json.dumps({"rows": compared.as_rows()}).replace(
        "<", "\\u003c"
    )  # in a script element
    document = Document()
    with document.models.freeze():  # otherwise bokeh walks all models again for each figure
        for figure in figures.values():
            document.add_root(figure)
    scripts, drawn = components(figures) if figures else ("", {})
    for panel in panels:
        panel["picture"] = Markup(drawn[panel["figure"].name])
    html: str = TEMPLATES.get_template("page.html").render(
        title=compared.title,
        answer=compared.recommendation.answer,
        finding=compared.why,
        summary=Markup(summary(compared.rows, compared.refused)),
        skipped=skipped,
        pictures={name: Markup(drawn[name]) for name in ("tiles", "ways") if facts},
        memory=Markup(drawn["memory"]) if memory else "",
        legend=memory,
        run=_run_words(compared, ran.row, run, scale) if run and ran else "",
        few=compared.ranks > FEW and not all_ranks,
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


def _library() -> str:
    """Returns BokehJS; bokeh.resources would load it from a network once panel is imported."""
    script = (BOKEH / "server/static/js/bokeh.min.js").read_text(encoding="utf-8")
    return "<script>" + script.replace("</script", "<\\/script") + "</script>"


def _timelines(
    compared: Comparison,
    ran: Case | None,
    run: Recorded | None,
    scale: float,
    axis: Range1d,
    every: bool,
) -> list[Panel]:
    panels = []
    for number, case in enumerate(compared.cases):
        shown = case.prediction.representatives(compared.ranks if every else FEW)
        bars = bars_of(case.prediction, shown)
        own = run if case is ran else None
        picture = TimelinePicture(f"timeline-{number}", axis)
        drawn = picture.show(bars, compared.ranks, shown, own, scale, case.row.makespan_s)
        words = _time_words(case, bool(bars))
        words += f"; measured {seconds(own.makespan)}" if own else ""
        panels.append({"title": case.row.schedule, "words": words, "figure": drawn})
    return panels


def _time_words(case: Case, drawn: bool) -> str:
    words = f"{seconds(case.row.makespan_s)}, {case.row.idle_fraction:.0%} idle"
    if not drawn:
        return f"{words}; the plan is too large to draw its timeline"
    one = "; one bar per step, because the plan has too many rows"
    return words if whole(case.prediction) else words + one


def _scale(row: Row, run: Recorded) -> float:
    """Returns the factor that scales a run far off its prediction to it, otherwise 1."""
    ratio = row.makespan_s / (run.makespan or 1.0)
    return 1.0 if 1 / APART <= ratio <= APART else ratio


def _run_words(compared: Comparison, row: Row, run: Recorded, scale: float) -> str:
    """Returns a sentence that compares a recorded run with its prediction."""
    where = f" on {run.hardware}" if run.hardware else ""
    drawn = "" if scale == 1 else f", and its time axis is scaled by {scale:.3g}"
    return (
        f"A recorded run of {row.schedule}{where} is drawn below its prediction, hatched: it took"
        f" {seconds(run.makespan)}, {run.makespan / row.makespan_s:.2f}x the"
        f" {seconds(row.makespan_s)} predicted for {compared.hardware}{drawn}."
    )


def _loads(cases: Sequence[Case]) -> list[Panel]:
    """Draws the load of each schedule, all on one scale."""
    works = [work_of(case.plans) for case in cases]
    high, panels = max(over_average(work).max() for work in works), list[Panel]()
    for number, (case, work) in enumerate(zip(cases, works, strict=True)):
        drawn = LoadPicture(f"load-{number}").show(work, high)
        panels.append({"title": case.row.schedule, "words": _load_words(case), "figure": drawn})
    return panels


def _links(cases: Sequence[Case]) -> list[Panel]:
    """Draws a heat map of each schedule, all on one scale."""
    links = [by_nodes(traffic_of(case.plans), case.prediction.ranks_per_node) for case in cases]
    high, panels = max(float(table.max()) for table, _ in links), list[Panel]()
    for number, (case, link) in enumerate(zip(cases, links, strict=True)):
        total, busiest = case.prediction.bytes_sent.sum(), case.row.max_bytes_sent
        words = f"{size(int(total))} in total, {size(busiest)} by the busiest sender"
        drawn = TrafficPicture(f"links-{number}").show(*link, high)
        panels.append({"title": case.row.schedule, "words": words, "figure": drawn})
    return panels


def _load_words(case: Case) -> str:
    busiest, lightest = case.row.busiest, case.row.lightest
    most, least = times(busiest.share), times(lightest.share)
    if most == least:
        return "every rank computes the average work"
    return (
        f"rank {busiest.rank} computes {most} the average work, rank {lightest.rank} only {least}"
    )


def _memory(compared: Comparison, axis: Range1d, figures: Panel) -> list[Panel]:
    """Draws memory and returns its legend: an entry per schedule with memory over time."""
    used = [(case.row.schedule, usage(case.prediction)) for case in compared.cases]
    held: Sequence[tuple[str, Usage]] = [(name, one) for name, one in used if one is not None]
    if held:
        figures["memory"] = MemoryPicture(axis, len(held)).show(held)
    return [
        {
            "words": f"{name}: peak {size(one.peak)} on rank {one.rank}",
            **look_of(number, len(held)),
        }
        for number, (name, one) in enumerate(held)
    ]
