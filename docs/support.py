"""Writes the support matrix (schedule x workload x pass x program), and tests every cell."""

import textwrap
from collections.abc import Iterable
from typing import Any

from markdown import Lines, table

import ringloom as rl
from ringloom.codegen import TARGETS

SMALL_WORK = rl.Workload(37, None, 4, 2, 8, dtype="float64")
MASKS: dict[str, rl.Mask] = {
    "full": rl.Full(),
    "causal": rl.Causal(),
    "window": rl.Window(9, 2),
    "causal window": rl.Window(9),
    "prefix": rl.Prefix(11),
    "documents": rl.Documents((10, 20, 7)),
    "causal documents": rl.Causal() & rl.Documents((10, 20, 7)),
    "window and globals": rl.Causal() & (rl.Window(6) | rl.Global(3)),
    "blocks": rl.Blocks(((1, 0), (1, 1)), 19),
    "causal chunks": rl.Causal() & rl.Chunks(8),
    "tree": rl.Tree((12, 10, 15), (None, 0, 0)),
    "slices": rl.Slices(((0, 20, 0, 20, "causal"), (20, 37, 3, 37, "bi"))),
}
SHAPES: dict[str, dict[str, Any]] = {
    "more keys than queries": {"kv_seq": 50},
    "more queries than keys": {"kv_seq": 20},
    "heads that the ranks do not divide": {"heads": 5, "kv_heads": 5},
    "fewer KV heads than ranks": {"heads": 6, "kv_heads": 1},
    "fewer tokens than ranks": {"seq": 3, "kv_seq": 3},
}
ROWS = [*MASKS, *SHAPES]
FORMS = "forward", "backward", *TARGETS, *(f"{target} --dynamic" for target in TARGETS)
# forms that support only some rows: these rows, and the reason
PARTIAL_FORMS = {
    "jax --dynamic": (
        {"full"},
        (
            "A compiled program sends fixed messages, before its mask is known. A mask may need any"
            " of these messages, so the program is made from plans for the full mask."
        ),
    ),
}

LARGE_WORK: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
# schedules whose loops grow with the ranks, and why
IRREGULAR = {
    "multi-ring": (
        "Its rings are not shifts on any mesh: each ring is a different permutation, and there is"
        " one ring per link of a rank."
    ),
    "pass-q": (
        "Every rank sends the results for all other ranks in one step, each over a different"
        " distance, so a program needs one transfer per distance."
    ),
    "startrail": (
        "Sections, teams and members are three axes of a mesh, but programs from loops have only"
        " two, `outer` and `inner`. With one section, on 4 or 9 ranks, the program is printed as"
        " loops. Member c starts with the data of the rank that is c sections further; this is not"
        " a single shift on any mesh, so each member needs its own message."
    ),
    "tree": (
        "Each level sends as many values as all previous levels together, over twice the distance,"
        " so a program needs one transfer per level and one attend per rank."
    ),
}


# workloads whose programs are loops only for some schedules, and why
LOOPS_FOR_SOME = {
    "causal window": (
        {"mask": "causal & window:10000"},
        (
            "Plans send only the pieces that a window needs, and these differ between ranks: pieces"
            " travel separately, stop at different ranks, and their sums return from there. If no"
            " condition on the step and the rank says which pieces travel, as with two travelling"
            " pieces per rank, the program uses tables. Programs of `usp` use tables, too, because"
            " only a part of the exchanged data travels on, and programs know only the positions of"
            " whole ranks. Schedules that send whole blocks are printed as loops: gathers,"
            " exchanges of heads, and striped rings, where a window needs the same share of every"
            " block."
        ),
    ),
    "causal documents": (
        {"mask": "causal & documents:16384,16384,16384,16384"},
        (
            "As under windows, different ranks need different pieces. The ranks that share a"
            " document form a list, for which there is no condition on the rank. `usp` is printed"
            " as loops if documents end where groups of ranks end."
        ),
    ),
    "heads that the ranks do not divide": (
        {"mask": "causal", "heads": 12, "kv_heads": 6},
        (
            "Ranks get slices of heads of different sizes, or several ranks get the same slice, but"
            " loops can only exchange equal slices. This affects schedules that exchange or gather"
            " heads."
        ),
    ),
}


def workload(row: str) -> rl.Workload:
    """Returns the workload of a row: a mask on 37 tokens, or a shape with a causal mask."""
    fields = {name: getattr(SMALL_WORK, name) for name in ("seq", "heads", "kv_heads", "head_dim")}
    fields |= {"dtype": "float64", "mask": MASKS.get(row, rl.Causal())} | SHAPES.get(row, {})
    return rl.Workload(**fields)


def refusals(schedule: str, row: str, ranks: int = 4) -> dict[str, str]:
    """Returns the forms that raise an error, with their messages.

    Plans are verified and run against dense attention; programs are emitted. Raises AssertionError
    for a plan that is not exact.
    """
    from ringloom.runtimes.validation import check

    try:
        plans = rl.plan(schedule, workload(row), ranks, pass_="both")
    except rl.PlanError as error:
        return dict.fromkeys(FORMS, str(error))
    if not check(plans).exact:
        raise AssertionError(f"{plans.forward!r:.200} is not exact")
    errors = {}
    for target in TARGETS:
        for form, options in ((target, {}), (f"{target} --dynamic", {"dynamic": True})):
            try:
                rl.emit(plans, target, **options)
            except rl.PlanError as error:
                errors[form] = str(error)
    return errors


def unsupported_forms(row: str) -> set[str]:
    """Returns the forms that a row does not support, for any schedule."""
    return {form for form, (rows, _) in PARTIAL_FORMS.items() if row not in rows}


def matrix(names: Iterable[str], rows: Iterable[str]) -> Lines:
    """Lists the rows that each form supports, and why it does not support other rows.

    Raises AssertionError for a cell that differs from `PARTIAL_FORMS`.
    """
    names, rows = list(names), list(rows)
    for name in names:
        for row in rows:
            errors = refusals(name, row)
            if errors.keys() != unsupported_forms(row):
                raise AssertionError(
                    f"{name}, {row}: {errors} but declared {unsupported_forms(row)}"
                )
    cells = list[tuple[str, str, str]]()
    for form in FORMS:
        supported = [row for row in rows if form not in unsupported_forms(row)]
        every_row = len(supported) == len(rows)
        listed = f"all {len(rows)}" if every_row else ", ".join(supported) or "none"
        cells.append((f"`{form}`", f"all {len(names)}", listed))
    yield from table(("", "schedules", "masks and shapes"), cells)
    for form, (_, reason) in PARTIAL_FORMS.items():
        yield from (f"`{form}`: {reason}", "")


def count_lines(schedule: str, target: str, **fields: Any) -> int:
    """Returns the number of lines of a program from loops on 8 ranks; 0 if it uses tables."""
    plans = rl.plan(schedule, rl.Workload(seq=2**16, **LARGE_WORK | fields), 8, pass_="both")
    source = rl.emit(plans, target)
    return 0 if "(as tables" in source.replace("\n", " ") else source.count("\n")


def program_length(schedule: str, mask: str, target: str) -> int:
    """Returns the number of lines under a full or a causal mask; 0 if the program uses tables.

    Raises AssertionError if the program differs from what is declared.
    """
    count = count_lines(schedule, target, mask=mask)
    if (not count) != (schedule in IRREGULAR):
        raise AssertionError(f"{schedule}, {mask}, {target}: {'loops' if count else 'tables'}")
    return count


def programs(names: Iterable[str]) -> Lines:
    """Lists the number of lines of every schedule's programs, and why some use tables."""
    yield from table(
        ("causal, 8 ranks, both passes", "torch", "JAX"),
        (
            (
                f"`{name}`",
                *(program_length(name, "causal", target) or "tables" for target in TARGETS),
            )
            for name in names
        ),
    )
    yield from ("Programs whose loops would grow with the ranks are printed as tables:", "")
    yield from (f"* `{name}`: {reason}" for name, reason in IRREGULAR.items())


def loops_by_workload(names: Iterable[str]) -> Lines:
    """Lists the number of lines of programs per workload, and why some are not loops."""
    rows = list[list[str]]()
    for name in names:
        if name not in IRREGULAR:
            rows.append([f"`{name}`"])
            for fields, _ in LOOPS_FOR_SOME.values():
                counts = [count_lines(name, target, **fields) for target in TARGETS]
                rows[-1].append(", ".join(str(count or "tables") for count in counts))
    yield from table(("8 ranks, torch and JAX", *LOOPS_FOR_SOME), rows)
    for row, (_, reason) in LOOPS_FOR_SOME.items():
        yield from (f"**{row}** {reason}", "")


def support() -> Lines:
    """Writes the page: the matrix, the kinds of programs, and what plans cannot express."""
    yield from ("# Support matrix", "")
    yield from (
        "Every schedule was tried with every mask and every shape, with 37 tokens on 4 ranks.",
        "Forward and backward plans were verified and run on virtual ranks: they agree with dense",
        "attention to 1e-12 (gradients to 1e-11), and leak nothing. Programs were emitted for both",
        "passes; the tests also run programs, and check that they are exact.",
        "",
    )
    yield from matrix(rl.SCHEDULES, ROWS)
    yield from (f"Schedules: {', '.join(f'`{name}`' for name in rl.SCHEDULES)}.", "")
    yield from (f"Masks: {', '.join(MASKS)}. Shapes, under a causal mask: {', '.join(SHAPES)}.", "")
    yield from ("## Loops and tables", "", *programs(rl.SCHEDULES), "")
    yield from (
        "The next table shows the lines of programs under other masks and with other head counts.",
        "Programs that cut tiles at run time, along the bands of the mask, have about fifty lines",
        "more: the boxes, their cutting, the merging of tiles, and a self-check of sampled rows,",
        "because such programs work only for their own lengths.",
        "",
        *loops_by_workload(rl.SCHEDULES),
        "",
    )
    yield from ("## Layouts", "", *layouts(), "")
    yield from ("## Unsupported features", "")
    yield from ("Plans cannot express features that change weights. The errors are:", "", "```text")
    for word in ("dropout", "alibi", "softcap", "sinks"):
        yield from textwrap.wrap(refusal_of(word), 88, subsequent_indent="    ")
    yield from ("```", "")


def layouts() -> Lines:
    """Lists the schedules that accept no layout, or no layout by work, and why; tries each."""
    reasons = {
        "groups": "assigns each document to its own ranks",
        "cache-ring": "lays out the cache and new tokens separately",
    }
    refusing = {"zigzag": list[str](), "heap": list[str]()}
    for name in rl.SCHEDULES:
        for layout, names in refusing.items():
            try:
                rl.plan(name, SMALL_WORK, 4, layout=layout)
            except rl.PlanError:
                names.append(name)
    only_by_work = [name for name in refusing["heap"] if name not in refusing["zigzag"]]
    if set(only_by_work) != set(reasons):
        raise AssertionError(f"{only_by_work} refuse layouts by work; declared: {[*reasons]}")
    yield "Every schedule accepts every layout, with these exceptions:"
    yield ""
    listed = ", ".join(f"`{name}`" for name in refusing["zigzag"])
    yield f"* {listed}: their steps depend on the order of tokens or heads."
    yield from (f"* `{n}` {reasons[n]}, so it accepts no layout by work." for n in only_by_work)


def refusal_of(word: str) -> str:
    """Returns the error for a feature that is not a mask."""
    from ringloom.planner.masks import parse

    try:
        parse(f"causal & {word}")
    except rl.PlanError as error:
        return f"{word}: {error}"
    raise AssertionError(f"{word} was not refused")
