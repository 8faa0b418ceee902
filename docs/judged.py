"""Writes the page that compares predictions with published measurements."""

from collections.abc import Sequence
from math import expm1, log

import own_runs
import tpu
from frozen_fit import Fitted, fitted
from left_out import left_out
from markdown import Lines, table
from soundness import CHECKS, soundness

from ringloom.reproduce import validation
from ringloom.reproduce.measured import BASELINES, Measured, published_rows
from ringloom.reproduce.pages import ARITHMETIC, number
from ringloom.reproduce.papers import NOT_PREDICTED, PAPERS, distflash, striped
from ringloom.reproduce.tables import Table
from ringloom.reproduce.validation import APART, Errors
from ringloom.simulator.confidence import SOURCES, basis, residuals, unvalidated
from ringloom.simulator.hardware import hardware, presets
from ringloom.simulator.hardware.schema import chip_of

FAR = 0.15
KINDS = {  # reasons for tables that are not only arithmetic, by parts of their titles
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
SHORT = """
* The charts of FlashAttention-3 and MagiAttention contain two calls that differ only in their KV
  heads: 64 query heads over the batch, 4k tokens, causal, forward on H100. With 64 KV heads they
  reach 579 TF/s, with 8 they reach 663, 14.5% more. Reading shared KV heads once explains a third
  of the difference; the largest errors are those of the faster calls, on 2k and 4k tokens.
* The shortest calls on B200, causal with 2k tokens, take 19% longer than predicted. They take
  hardly longer than the host needs to prepare them, and the model does not add the two times.
* A backward call on H100 takes 90 us in addition to its work, on short and long sequences: one
  constant, fitted to both charts. The charts of FlashAttention-2 show no such time.
* Rings of eight H800 with a backward pass take 2 to 5% longer than predicted. Several kernels add
  their gradients, as they merge partial outputs; one constant, fitted to outputs, is used for both.
* All-gather and USP over more than one node take 4 to 8% longer than predicted, zigzag about 4%
  less, Ulysses 2 to 6% less.
* Only three sources measured whole schedules, one each on H100, H800 and A800.
* `attention.merge`, which all presets share, was fitted to the six rows of rings on H800; on other
  chips it counts as uncalibrated. `attention.host` rests on three calls that the host delays.
* For TPUs, no published attention states all that a prediction needs, except the speedups of
  Striped Attention: the constants of their kernels are assumed.
"""


def page() -> Lines:
    """Writes the whole page."""
    rows, frozen = published_rows(), validation.frozen()
    stated = validation.stated(rows)
    constants = fitted(stated)  # predicts each row again for each constant
    every, whole = (Errors.of(r.error for r in part) for part in (stated, _schedules(stated)))
    yield from ("# Predictions against measurements", "")
    digest = f"`{frozen['sha256'][:16]}...`"
    yield from (
        f"Constants were frozen on {frozen['date']}, when {frozen['rows']} published rows were",
        f"known (SHA-256 of their file: {digest}). {every.rows} of these state all that is needed:",
        f"the mean error of their times is {every.mean:.1%}, and the worst {every.worst:.1%}; for",
        f"the {whole.rows} rows of whole schedules, {whole.mean:.1%} and {whole.worst:.1%}.",
        "",
        "*Fitted*: constants were fitted to this row and others. *Given*: the row was known, but",
        "no constant was fitted to it. Both kinds are calibrating: they time only attention, on a",
        "known chip, kernel and setting. *Context*: a part of the setting is assumed, or attention",
        "is only a part of the time. Such rows are shown but do not count in any mean; a ratio of",
        "two schedules still tests their order. `ringloom reproduce --validate FILE` tests other",
        "rows.",
        "",
        "Three simpler models serve as baselines:",
        "",
        *(f"* *{name}*: {what}" for name, what in BASELINES.items()),
        "",
    )
    parts: dict[str, Lines] = {
        "Calibrating and context": _sorted(rows, constants),
        "Own runs": own_runs.section(),
        "By chip": _grouped(stated, "on"),
        "By schedule": _grouped(_schedules(stated), "schedule"),
        "By pass": _grouped(stated, "pass_"),
        "Training": _training(),
        "Order of schedules": _orders(rows),
        "Intervals": _intervals(),
        "TPUs": tpu.section(),
        "Soundness": _soundness(),
        "What was fitted": _fitted(stated, constants),
        "What falls short, and why": iter([*SHORT.strip().split("\n"), ""]),
        "Measured more than once": _repeated(stated),
        "Every row": _every(rows),
    }
    for title, lines in parts.items():
        yield from (f"## {title}", "")
        yield from lines


def _sorted(rows: Sequence[Measured], constants: Sequence[Fitted]) -> Lines:
    """Lists errors of the rows that count in means, and the reasons why others do not."""
    stated = validation.stated(rows)
    sizes = [abs(expm1(row.error)) for row in stated]
    near = sum(size <= FAR for size in sizes)
    yield from (
        f"{near / len(stated):.0%} of {len(stated)} calibrating rows are within {FAR:.0%}; the",
        f"mean error is {sum(sizes) / len(sizes):.1%}. {len(constants)} constants were fitted, one",
        f"per {len(stated) // len(constants)} rows. Rows with larger errors, with a likely cause:",
        "",
    )
    far = [row for row, size in zip(stated, sizes, strict=True) if size > FAR]
    lines = [(f"{r.source}, {r.on}: {r.name}", f"{expm1(r.error):+.1%}", r.why) for r in far]
    yield from table(("", "error", "cause"), lines or [("none", "", "")])
    yield from ("Context rows, which do not count in any mean:", "")
    groups = dict[tuple[str, str], list[str]]()
    for row in rows:
        if row.use == "context":
            groups.setdefault((f"{row.source}, {row.on}", row.why), []).append(row.name)
    for line in validation.context():
        source, _, setting = line.what.partition(": ")
        groups.setdefault((source, line.note), []).append(setting)
    head = ("source", "rows", "why")
    yield from table(head, ((source, len(own), why) for (source, why), own in groups.items()))
    yield from (
        "Papers also publish training steps and claims. [Another page](reproduction.md) lists the",
        "errors of these tables; they do not count in any mean here.",
        "",
    )
    tables = [each for name, make in PAPERS.items() if name != "charts" for each in make()]
    yield from table(("table", "rows", "why"), ((t.title, len(t.lines), _why(t)) for t in tables))


def _why(table: Table) -> str:
    if all(line.arithmetic for line in table.lines):
        return ARITHMETIC
    (reason,) = [why for why, titles in KINDS.items() if any(t in table.title for t in titles)]
    return reason


def _schedules(rows: Sequence[Measured]) -> list[Measured]:
    return [row for row in rows if row.ranks > 1]


def _grouped(rows: Sequence[Measured], name: str) -> Lines:
    """Lists errors of groups of rows, ours and those of the baselines."""
    yield from table(
        ("", "rows", "fitted", "mean error", "worst", *(f"mean of {name}" for name in BASELINES)),
        (
            (key, len(own), sum(row.use == "fitted" for row in own), *_errors(own))
            for (key,), own in validation.group_by(rows, name).items()
        ),
    )


def _errors(rows: Sequence[Measured]) -> list[str]:
    own = Errors.of(row.error for row in rows)
    plain = [
        Errors.of(log(row.baselines[name] / row.times[0]) for row in rows).mean
        for name in BASELINES
    ]
    return [f"{value:.1%}" for value in (own.mean, own.worst, *plain)]


def _training() -> Lines:
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
        here = [run for run in runs if run.hardware == chip and run.measured_speedup]
        own, formula = (
            Errors.of(log(getattr(run, name) / run.measured_speedup) for run in here)
            for name in ("predicted_speedup", "tms")
        )
        kind = f"striped over ring, {chip}"
        rows.append((kind, own.rows, f"{own.mean:.1%}", f"{own.worst:.1%}", f"{formula.mean:.1%}"))
    for nodes in (1, 2):
        here_ = [run for run in distflash.runs() if run.ranks == 8 * nodes]
        own = Errors.of(log(distflash.seconds(run) / run.seconds) for run in here_)
        rows.append(
            (f"iterations on {nodes} x 8 A100", own.rows, f"{own.mean:.1%}", f"{own.worst:.1%}", "")
        )
    yield from table(("", "rows", "mean error", "worst", "mean of the formula"), rows)


def _orders(rows: Sequence[Measured]) -> Lines:
    made = validation.decisions(_schedules(rows))
    verdicts = [one.verdict for one in made]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("right", "wrong", "too close"))
    yield from (
        "Pairs of schedules in one setting whose published times are",
        f"more than {APART - 1:.0%} apart, and the ratios of these times: {counts}.",
        "*Too close*: the interval of the predicted ratio contains 1.",
        "",
    )
    for where in dict.fromkeys(one.setting.partition(": ")[0] for one in made):
        yield from (f"### {where}", "")
        yield from table(
            ("", "first / second", "published", "predicted", "interval", ""),
            (
                (
                    *(d.setting.partition(": ")[2], f"`{d.first}` / `{d.second}`"),
                    *(f"{d.published:.2f}", f"{d.predicted:.2f}"),
                    *(f"{d.interval[0]:.2f} to {d.interval[1]:.2f}", d.verdict),
                )
                for d in made
                if d.setting.startswith(f"{where}: ")
            ),
        )


def _intervals() -> Lines:
    parts = left_out()
    inside, total = sum(p.inside for p in parts), sum(p.rows for p in parts)
    halves = sorted(p.half_width for p in parts for _ in range(p.rows))
    pairs = dict.fromkeys((chip_of(row.hardware), row.pass_) for row in residuals())
    kinds = {pair: basis(*pair) for pair in pairs}
    own = [f"{pass_} passes on {chip}" for (chip, pass_), one in kinds.items() if one.chip]
    yield from (
        "Each source in turn is left out with all its rows (calls and schedules, forward and",
        "backward), and tested against the interval that all other sources give. It contains",
        f"{inside} of {total} rows ({inside / total:.0%}) at a median half-width of",
        f"{halves[total // 2]:.1%}. Constants were fitted to some of these rows, so errors on",
        "a new source are larger; Student's distribution for few sources allows for that. If fewer",
        f"than {SOURCES} sources timed a pass on a chip, the interval of all chips is used. These",
        f"have separate intervals: {', '.join(own)}.",
        "",
    )
    rows = ((p.source, p.rows, p.inside, f"{p.half_width:.1%}") for p in parts)
    yield from table(("source left out", "rows", "inside", "median half-width"), rows)
    named = {"all others": basis("", "both"), **{f"{c}, {p}": b for (c, p), b in kinds.items()}}
    shown = [(k, b) for k, b in named.items() if b.chip or k == "all others"]
    rows_ = ((k, len(b.rows), len(b.sources), f"{expm1(b.error):.1%}") for k, b in shown)
    yield from table(("interval of", "rows", "sources", "half-width"), rows_)
    marked = [name for name in presets() if unvalidated(hardware(name))]
    yield from (
        "No published times of schedules on chips joined as a torus, a mesh or by PCIe state all",
        f"that a prediction needs. Orders on {', '.join(marked)} are marked *not validated*.",
        "",
    )


def _soundness() -> Lines:
    counts = soundness()
    rows = ((name, CHECKS[name], count.runs, count.failed) for name, count in counts.items())
    yield from table(("", "property", "runs", "failed"), rows)


def _fitted(stated: Sequence[Measured], constants: Sequence[Fitted]) -> Lines:
    yield from (
        f"{len(constants)} constants for {len(stated)} rows, each with its physical range and the",
        "number of fitted rows whose times it changes. The [presets](hardware_presets.md) say what",
        "each constant was fitted to.",
        "",
    )
    rows = list[tuple[object, ...]]()
    for one in constants:
        machine, key = hardware(one.chips[0]), one.constant
        runs = ", ".join(dict.fromkeys(r.schedule if r.ranks > 1 else "kernel" for r in one.rows))
        where = "{:.4g} to {:.4g}".format(*machine.range(key))
        value, of = f"{machine[key]:.4g} ({where})", f"{len(one.rows)} of {runs}"
        rows.append((", ".join(one.chips), f"`{key}`", value, of))
    yield from table(("", "constant", "value (range)", "rows"), rows)


def _repeated(stated: Sequence[Measured]) -> Lines:
    yield from (
        "Sources that measured the same call on the same chip contradict each other. No model can",
        "be closer to both than the square root of their ratio.",
        "",
    )
    rows = list[tuple[object, ...]]()
    for (name, on, unit), own in validation.group_by(stated, "name", "on", "quantity").items():
        if len(own) > 1:
            values = [row.value for row in own]
            least, worst = max(values) / min(values), max(abs(expm1(row.error)) for row in own)
            said = ", ".join(f"{row.value:.4g} ({row.source})" for row in own)
            unit = validation.UNITS.get(unit, unit)
            rows.append((f"{name}, {on}", unit, said, f"{least**0.5 - 1:.1%}", f"{worst:.1%}"))
    yield from table(("", "", "published", "least error of any model", "ours at worst"), rows)


def _every(rows: Sequence[Measured]) -> Lines:
    for (source, on), own in validation.group_by(rows, "source", "on").items():
        yield from (f"### Rows of {source}, {on}", "")
        head = ("", "use", "", "published", "ours", "error", *BASELINES)
        yield from table(head, map(_row, own))
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
    plain = row.baselines.values() if row.quantity != "ratio" else ()
    errors = [f"{value / row.times[0] - 1:+.0%}" for value in plain] or [""] * len(BASELINES)
    numbers = (f"{value:.4g}" for value in (row.value, row.ours))
    return name, row.use, unit, *numbers, f"{expm1(row.error):+.1%}", *errors
