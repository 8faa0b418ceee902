"""Writes the page that compares predictions with published measurements."""

from collections.abc import Sequence
from math import expm1, log

import own_runs
import tpu
from cross_validation import leave_out_sources
from frozen_fit import Fit, find_fits
from markdown import Lines, table
from sanity_checks import CHECKS, count_failures

from ringloom.reproduce import validation
from ringloom.reproduce.measured import BASELINES, Measured, published_rows
from ringloom.reproduce.pages import ARITHMETIC, number
from ringloom.reproduce.papers import NOT_PREDICTED, PAPERS, distflash, striped
from ringloom.reproduce.tables import Table
from ringloom.reproduce.validation import APART, Errors
from ringloom.simulator.confidence import SOURCES, basis, residuals, unvalidated
from ringloom.simulator.hardware import hardware, presets
from ringloom.simulator.hardware.schema import chip_of

LARGE_ERROR = 0.15
REASONS = {  # why rows of a table are context, and parts of the titles of such tables
    "counted in plans: no time": (
        *("maximum speedup", "skipped tiles", "activations", "schedule of", "idle shares"),
        *("traffic", "elements that travel"),
    ),
    "whole training steps": (
        *("end-to-end", "overhead of", "gains", "seconds per", "other systems", "claims"),
    ),
    "memory, by a model of training": ("longest context",),
    "the source does not state the length": ("speedup of 8",),
    "the source gives no numbers": ("not compared",),
}
SHORTCOMINGS = """
* The charts of FlashAttention-3 and MagiAttention contain two calls that differ only in their KV
  heads: 64 query heads over the batch, 4k tokens, causal, forward on H100. The call with 64 KV
  heads reaches 579 TF/s, the call with 8 reaches 663 TF/s, 14.5% more. Reading shared KV heads
  once explains a third of the difference; the faster calls, on 2k and 4k tokens, have the largest
  errors.
* The shortest calls on B200, causal with 2k tokens, take 19% longer than predicted. They take
  little more time than the host needs to prepare them; the model takes the longer of the two times,
  not their sum.
* A backward call on H100 takes 90 us in addition to its work, on short and long sequences: one
  constant, fitted to both charts. The charts of FlashAttention-2 show no such time.
* Rings of eight H800 with a backward pass take 2 to 5% longer than predicted. Several kernels add
  gradients, and several merge partial outputs; one constant, fitted to outputs, is used for both.
* All-gather and USP over more than one node take 4 to 8% longer than predicted, zigzag about 4%
  less, Ulysses 2 to 6% less.
* Only three sources measured whole schedules, one each on H100, H800 and A800.
* `attention.merge`, which all presets share, was fitted to the six rows of rings on H800; on other
  chips it counts as uncalibrated. `attention.host` was fitted to three calls that the host delays.
* For TPUs, only the speedups of Striped Attention state all settings that a prediction needs, so
  the constants of TPU kernels are assumed.
"""


def page() -> Lines:
    """Writes the whole page."""
    rows, frozen = published_rows(), validation.frozen()
    stated = validation.stated(rows)
    constants = find_fits(stated)  # predicts each row again for each constant
    calls, schedules = (Errors.of(r.error for r in part) for part in (stated, _schedules(stated)))
    yield from ("# Predictions against measurements", "")
    digest = f"`{frozen['sha256'][:16]}...`"
    yield from (
        f"Constants were frozen on {frozen['date']}, when {frozen['rows']} published rows were",
        f"known (SHA-256 of their file: {digest}). {calls.rows} of these state all settings: the",
        f"mean error of their times is {calls.mean:.1%}, and the worst error {calls.worst:.1%};",
        f"for the {schedules.rows} rows of whole schedules, {schedules.mean:.1%} and",
        f"{schedules.worst:.1%}.",
        "",
        "*Fitted*: constants were fitted to this row and others. *Given*: the row was known, but",
        "no constant was fitted to it. Rows of both kinds are calibrating: they time only",
        "attention, on a known chip, kernel and setting. *Context*: a part of the setting is",
        "assumed, or attention is only a part of the time. Such rows are shown but do not count in",
        "any mean; a ratio of two schedules still tests their order. `ringloom reproduce",
        "--validate FILE` tests other rows.",
        "",
        "Three simpler models serve as baselines:",
        "",
        *(f"* *{name}*: {meaning}" for name, meaning in BASELINES.items()),
        "",
    )
    parts: dict[str, Lines] = {
        "Calibrating and context": _rows_by_use(rows, constants),
        "Own runs": own_runs.section(),
        "By chip": _errors_by(stated, "on"),
        "By schedule": _errors_by(_schedules(stated), "schedule"),
        "By pass": _errors_by(stated, "pass_"),
        "Training": _training_errors(),
        "Order of schedules": _order_verdicts(rows),
        "Intervals": _interval_tests(),
        "TPUs": tpu.section(),
        "Sanity checks": _sanity_checks(),
        "What was fitted": _fitted_constants(stated, constants),
        "Shortcomings": iter([*SHORTCOMINGS.strip().split("\n"), ""]),
        "Measured more than once": _repeated_calls(stated),
        "Every row": _all_rows(rows),
    }
    for title, lines in parts.items():
        yield from (f"## {title}", "")
        yield from lines


def _rows_by_use(rows: Sequence[Measured], constants: Sequence[Fit]) -> Lines:
    """Lists errors of the rows that count in means, and the reasons why others do not."""
    stated = validation.stated(rows)
    errors = [abs(expm1(row.error)) for row in stated]
    small = sum(error <= LARGE_ERROR for error in errors)
    yield from (
        f"{small / len(stated):.0%} of {len(stated)} calibrating rows are within",
        f"{LARGE_ERROR:.0%}; the mean error is {sum(errors) / len(errors):.1%}. {len(constants)}",
        f"constants were fitted, one per {len(stated) // len(constants)} rows. These rows have",
        "larger errors:",
        "",
    )
    far = [row for row, error in zip(stated, errors, strict=True) if error > LARGE_ERROR]
    lines = [(f"{r.source}, {r.on}: {r.name}", f"{expm1(r.error):+.1%}", r.why) for r in far]
    yield from table(("", "error", "likely cause"), lines or [("none", "", "")])
    yield from ("Context rows do not count in any mean:", "")
    groups = dict[tuple[str, str], list[str]]()
    for row in rows:
        if row.use == "context":
            groups.setdefault((f"{row.source}, {row.on}", row.why), []).append(row.name)
    for line in validation.context():
        source, _, setting = line.what.partition(": ")
        groups.setdefault((source, line.note), []).append(setting)
    columns = ("source", "rows", "why")
    yield from table(
        columns, ((source, len(names), why) for (source, why), names in groups.items())
    )
    yield from (
        "Papers also publish training steps and claims. [Another page](reproduction.md) lists the",
        "errors of these tables, which do not count in any mean here.",
        "",
    )
    tables = [t for name, make_tables in PAPERS.items() if name != "charts" for t in make_tables()]
    yield from table(
        ("table", "rows", "why"), ((t.title, len(t.lines), _reason(t)) for t in tables)
    )


def _reason(table: Table) -> str:
    if all(line.arithmetic for line in table.lines):
        return ARITHMETIC
    (reason,) = [why for why, titles in REASONS.items() if any(t in table.title for t in titles)]
    return reason


def _schedules(rows: Sequence[Measured]) -> list[Measured]:
    return [row for row in rows if row.ranks > 1]


def _errors_by(rows: Sequence[Measured], name: str) -> Lines:
    """Lists our errors and those of the baselines, by group of rows."""
    yield from table(
        ("", "rows", "fitted", "mean error", "worst", *(f"mean of {name}" for name in BASELINES)),
        (
            (key, len(group), sum(row.use == "fitted" for row in group), *_errors(group))
            for (key,), group in validation.group_by(rows, name).items()
        ),
    )


def _errors(rows: Sequence[Measured]) -> list[str]:
    ours = Errors.of(row.error for row in rows)
    baselines = [
        Errors.of(log(row.baselines[name] / row.times[0]) for row in rows).mean
        for name in BASELINES
    ]
    return [f"{value:.1%}" for value in (ours.mean, ours.worst, *baselines)]


def _training_errors() -> Lines:
    """Lists errors of training runs: striped over ring, and iterations of DistFlashAttn."""
    yield from (
        "For speedups of striped over ring, three constants per chip are fitted (see [every",
        "row](reproduction.md)); the last column is the paper's own formula, TMS. For iterations,",
        "two constants are fitted to the runs on one node, and none to the runs on two nodes.",
        "",
    )
    runs = striped.predict_rows()
    rows = list[tuple[object, ...]]()
    for chip in dict.fromkeys(run.hardware for run in runs):
        on_chip = [run for run in runs if run.hardware == chip and run.measured_speedup]
        ours, formula = (
            Errors.of(log(getattr(run, name) / run.measured_speedup) for run in on_chip)
            for name in ("predicted_speedup", "tms")
        )
        kind = f"striped over ring, {chip}"
        errors = f"{ours.mean:.1%}", f"{ours.worst:.1%}", f"{formula.mean:.1%}"
        rows.append((kind, ours.rows, *errors))
    for nodes in (1, 2):
        on_nodes = [run for run in distflash.runs() if run.ranks == 8 * nodes]
        ours = Errors.of(log(distflash.seconds(run) / run.seconds) for run in on_nodes)
        kind = f"iterations on {nodes} x 8 A100"
        rows.append((kind, ours.rows, f"{ours.mean:.1%}", f"{ours.worst:.1%}", ""))
    yield from table(("", "rows", "mean error", "worst", "mean of the formula"), rows)


def _order_verdicts(rows: Sequence[Measured]) -> Lines:
    decisions = validation.decisions(_schedules(rows))
    verdicts = [decision.verdict for decision in decisions]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("right", "wrong", "too close"))
    yield from (
        "These are all pairs of schedules in one setting whose published times are",
        f"more than {APART - 1:.0%} apart, with the ratios of their times. Verdicts: {counts}.",
        "*Too close*: the interval of the predicted ratio contains 1.",
        "",
    )
    for place in dict.fromkeys(d.setting.partition(": ")[0] for d in decisions):
        yield from (f"### {place}", "")
        yield from table(
            ("", "first / second", "published", "predicted", "interval", ""),
            (
                (
                    *(d.setting.partition(": ")[2], f"`{d.first}` / `{d.second}`"),
                    *(f"{d.published:.2f}", f"{d.predicted:.2f}"),
                    *(f"{d.interval[0]:.2f} to {d.interval[1]:.2f}", d.verdict),
                )
                for d in decisions
                if d.setting.startswith(f"{place}: ")
            ),
        )


def _interval_tests() -> Lines:
    parts = leave_out_sources()
    inside, total = sum(p.inside for p in parts), sum(p.rows for p in parts)
    widths = sorted(p.half_width for p in parts for _ in range(p.rows))
    pairs = dict.fromkeys((chip_of(row.hardware), row.pass_) for row in residuals())
    bases = {pair: basis(*pair) for pair in pairs}
    separate = [f"{pass_} passes on {chip}" for (chip, pass_), b in bases.items() if b.chip]
    yield from (
        "Each source in turn is left out with all its rows (calls and schedules, forward and",
        "backward), and tested against the intervals of all other sources. These contain",
        f"{inside} of {total} rows ({inside / total:.0%}) at a median half-width of",
        f"{widths[total // 2]:.1%}. Constants were fitted to some of these rows, so errors on",
        "a new source are larger; Student's distribution for few sources allows for that. If fewer",
        f"than {SOURCES} sources timed a pass on a chip, the interval of all chips is used. These",
        f"have separate intervals: {', '.join(separate)}.",
        "",
    )
    rows = ((p.source, p.rows, p.inside, f"{p.half_width:.1%}") for p in parts)
    yield from table(("source left out", "rows", "inside", "median half-width"), rows)
    intervals = {"all others": basis("", "both")}
    intervals |= {f"{chip}, {pass_}": b for (chip, pass_), b in bases.items() if b.chip}
    yield from table(
        ("interval of", "rows", "sources", "half-width"),
        ((k, len(b.rows), len(b.sources), f"{expm1(b.error):.1%}") for k, b in intervals.items()),
    )
    untested = [name for name in presets() if unvalidated(hardware(name))]
    yield from (
        "No published times of schedules on chips joined as a torus, a mesh or by PCIe state all",
        f"settings that a prediction needs. Orders on {', '.join(untested)} are marked *not",
        "validated*.",
        "",
    )


def _sanity_checks() -> Lines:
    counts = count_failures()
    rows = ((name, CHECKS[name], count.runs, count.failed) for name, count in counts.items())
    yield from table(("", "property", "runs", "failed"), rows)


def _fitted_constants(stated: Sequence[Measured], constants: Sequence[Fit]) -> Lines:
    yield from (
        f"{len(constants)} constants were fitted for {len(stated)} rows. The table shows the",
        "physical range of each constant, and the number of fitted rows whose times it changes.",
        "The [presets](hardware_presets.md) say to which rows each constant was fitted.",
        "",
    )
    rows = list[tuple[object, ...]]()
    for fit in constants:
        machine, key = hardware(fit.chips[0]), fit.constant
        runs = ", ".join(dict.fromkeys(r.schedule if r.ranks > 1 else "kernel" for r in fit.rows))
        value = "{:.4g} ({:.4g} to {:.4g})".format(machine[key], *machine.range(key))
        rows.append((", ".join(fit.chips), f"`{key}`", value, f"{len(fit.rows)} of {runs}"))
    yield from table(("", "constant", "value (range)", "rows"), rows)


def _repeated_calls(stated: Sequence[Measured]) -> Lines:
    yield from (
        "Sources that measured the same call on the same chip differ. No model can be closer to",
        "two measurements than the square root of their ratio.",
        "",
    )
    rows = list[tuple[object, ...]]()
    for (name, on, quantity), group in validation.group_by(
        stated, "name", "on", "quantity"
    ).items():
        if len(group) > 1:
            values = [row.value for row in group]
            least = (max(values) / min(values)) ** 0.5 - 1
            worst = max(abs(expm1(row.error)) for row in group)
            published = ", ".join(f"{row.value:.4g} ({row.source})" for row in group)
            unit = validation.UNITS.get(quantity, quantity)
            rows.append((f"{name}, {on}", unit, published, f"{least:.1%}", f"{worst:.1%}"))
    yield from table(("", "", "published", "least error of any model", "our worst error"), rows)


def _all_rows(rows: Sequence[Measured]) -> Lines:
    for (source, on), group in validation.group_by(rows, "source", "on").items():
        yield from (f"### Rows of {source}, {on}", "")
        columns = ("", "use", "", "published", "ours", "error", *BASELINES)
        yield from table(columns, map(_row, group))
    yield from (f"### {NOT_PREDICTED}", "")
    yield from table(
        ("", "published", "why"),
        (
            (line.what, number(line.published, line.digits), line.note)
            for line in validation.context()
        ),
    )


def _row(row: Measured) -> tuple[object, ...]:
    unit = validation.UNITS.get(row.quantity, row.quantity)
    versus = f" over {row.versus}" if row.versus else ""
    name = f"{row.name}{versus}".replace(":", ":<wbr>")  # where lines may break
    baselines = row.baselines.values() if row.quantity != "ratio" else ()
    errors = [f"{value / row.times[0] - 1:+.0%}" for value in baselines] or [""] * len(BASELINES)
    numbers = (f"{value:.4g}" for value in (row.value, row.ours))
    return name, row.use, unit, *numbers, f"{expm1(row.error):+.1%}", *errors
