"""Writes the support matrix, schedule x workload x pass x program; tries every cell."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import ringloom as rl
from ringloom.codegen import TARGETS

Lines = Iterator[str]

SMALL = rl.Workload(37, None, 4, 2, 8, dtype="float64")
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
# form: the only rows that it supports, and why
HOLES = {
    "jax --dynamic": (
        {"full"},
        (
            "A compiled program sends fixed messages, before its mask is known. Some mask may need"
            " any of them, so it is made from plans for the full mask."
        ),
    ),
}

LARGE: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
# schedules whose loops grow with the ranks, and why
IRREGULAR = {
    "multi-ring": (
        "Its rings are not shifts on any mesh: each is a different permutation, and there are as"
        " many as a rank has links."
    ),
    "pass-q": (
        "Every rank sends the results for all other ranks in one step, each over a different"
        " distance: one transfer per distance."
    ),
    "startrail": (
        "Sections, teams and members are three axes of a mesh, but programs from loops have two,"
        " `outer` and `inner`: on 8 ranks `plan` shows three, in 9 statements. With one section, on"
        " 4 or 9 ranks, the program is printed as loops. Member c starts with the data of the rank"
        " that is c sections further, which is not a single shift on any mesh: each member needs a"
        " message of its own."
    ),
    "tree": (
        "Each level sends as many values as all previous levels together, twice as far: one"
        " transfer per level, and one attended value per rank."
    ),
}


# workloads whose programs are loops only for some schedules, and why
PARTLY = {
    "causal window": (
        {"mask": "causal & window:10000"},
        (
            "Only what is needed is sent, and a window needs different pieces of different ranks:"
            " pieces separate, stop at different ranks, and their sums return from there. If no"
            " condition on the step and the rank says which pieces travel, as with two travelling"
            " pieces per rank, the program uses tables. It also does for `usp`, although `plan`"
            " shows loops in 6 and 8 statements: a part of the data from an exchange travels, and"
            " programs know only the positions of whole ranks. Schedules that send whole blocks are"
            " loops: gathers, exchanges of heads, and stripes, of which a window needs the same"
            " share on every rank."
        ),
    ),
    "causal documents": (
        {"mask": "causal & documents:16384,16384,16384,16384"},
        (
            "As under windows: a list of ranks says which ranks share a document, and therefore"
            " which pieces travel. `usp` is printed as loops if documents end where groups of ranks"
            " end."
        ),
    ),
    "heads that the ranks do not divide": (
        {"mask": "causal", "heads": 12, "kv_heads": 6},
        (
            "Ranks get slices of heads of different sizes, or several ranks get the same slice, but"
            " loops exchange equal slices. This affects schedules that exchange or gather heads."
        ),
    ),
}


def workload(row: str) -> rl.Workload:
    """Returns the workload of a row: a mask on 37 tokens, or a shape with a causal mask."""
    fields = {name: getattr(SMALL, name) for name in ("seq", "heads", "kv_heads", "head_dim")}
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
    refused = {}
    for target in TARGETS:
        for form, options in ((target, {}), (f"{target} --dynamic", {"dynamic": True})):
            try:
                rl.emit(plans, target, **options)
            except rl.PlanError as error:
                refused[form] = str(error)
    return refused


def declared(row: str) -> set[str]:
    """Returns the forms that a row does not support, for any schedule."""
    return {form for form, (rows, _) in HOLES.items() if row not in rows}


def matrix(names: Iterable[str], rows: Iterable[str]) -> Lines:
    """Lists for each form the rows that it supports, and why it does not support others.

    Raises AssertionError for a cell that differs from `HOLES`.
    """
    names, rows = list(names), list(rows)
    for name in names:
        for row in rows:
            refused = refusals(name, row)
            if refused.keys() != declared(row):
                raise AssertionError(f"{name}, {row}: {refused} but declared {declared(row)}")
    yield from ("| | schedules | masks and shapes |", "|---|---|---|")
    every = f"all {len(names)}", f"all {len(rows)}"
    for form in FORMS:
        taken = [row for row in rows if form not in declared(row)]
        which = every[1] if len(taken) == len(rows) else ", ".join(taken) or "none"
        yield f"| `{form}` | {every[0]} | {which} |"
    yield ""
    for form, (_, reason) in HOLES.items():
        yield from (f"`{form}`: {reason}", "")


def lines(schedule: str, target: str, **fields: Any) -> int:
    """Returns the number of lines of a program from loops on 8 ranks; 0 if it uses tables."""
    plans = rl.plan(schedule, rl.Workload(seq=2**16, **LARGE | fields), 8, pass_="both")
    source = rl.emit(plans, target)
    return 0 if "(as tables" in source.replace("\n", " ") else source.count("\n")


def size(schedule: str, mask: str, target: str) -> int:
    """Returns the number of lines under a full or a causal mask; 0 if the program uses tables.

    Raises AssertionError if the program differs from what is declared.
    """
    count = lines(schedule, target, mask=mask)
    if (not count) != (schedule in IRREGULAR):
        raise AssertionError(f"{schedule}, {mask}, {target}: {'loops' if count else 'tables'}")
    return count


def programs(names: Iterable[str]) -> Lines:
    """Lists the lines of every schedule's programs, and why some use tables."""
    yield from ("| causal, 8 ranks, both passes | torch | JAX |", "|---|---|---|")
    for name in names:
        counts = [size(name, "causal", target) for target in TARGETS]
        yield f"| `{name}` | {' | '.join(str(count or 'tables') for count in counts)} |"
    yield from ("", "Programs whose loops would grow with the ranks are printed as tables:", "")
    yield from (f"* `{name}`: {reason}" for name, reason in IRREGULAR.items())


def partly(names: Iterable[str]) -> Lines:
    """Lists the lines of programs from loops per workload, and why others are not loops."""
    shown = [name for name in names if name not in IRREGULAR]
    yield from (
        f"| 8 ranks, torch and JAX | {' | '.join(PARTLY)} |",
        f"|---|{'---|' * len(PARTLY)}",
    )
    for name in shown:
        cells = list[str]()
        for fields, _ in PARTLY.values():
            counts = [lines(name, target, **fields) for target in TARGETS]
            cells.append(", ".join(str(count or "tables") for count in counts))
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield ""
    for row, (_, reason) in PARTLY.items():
        yield from (f"**{row}** {reason}", "")


def support() -> Lines:
    """Writes the page: the matrix, the kinds of programs, and what plans cannot express."""
    yield from ("# Support matrix", "")
    yield from (
        "Every schedule was tried with every mask and every shape, with 37 tokens on 4 ranks.",
        "Forward and backward: the plans were verified and run on virtual ranks; they agree with",
        "dense attention to 1e-12 (gradients to 1e-11) and leak nothing. Programs: both passes",
        "were emitted; the tests run programs and check that they are exact.",
        "",
    )
    yield from matrix(rl.SCHEDULES, ROWS)
    yield from (f"Schedules: {', '.join(f'`{name}`' for name in rl.SCHEDULES)}.", "")
    yield from (f"Masks: {', '.join(MASKS)}. Shapes, under a causal mask: {', '.join(SHAPES)}.", "")
    yield from ("## Loops and tables", "", *programs(rl.SCHEDULES), "")
    yield from (
        "Lines of programs under other masks, and with other head counts. Programs that cut tiles",
        "at run time, along the bands of the mask, have some fifty lines more: the boxes, their",
        "cutting, the merging of tiles, and a self-check of sampled rows, because such programs",
        "work only for their own lengths.",
        "",
        *partly(rl.SCHEDULES),
        "",
    )
    yield from ("## Layouts", "", *layouts(), "")
    yield from ("## Refused by name", "")
    yield from ("Features that change weights cannot be expressed by a plan:", "", "```text")
    for word in ("dropout", "alibi", "softcap", "sinks"):
        yield from textwrap.wrap(refused_word(word), 88, subsequent_indent="    ")
    yield from ("```", "")


def layouts() -> Lines:
    """Lists the schedules that accept no layout, or none by work, and why; tries each."""
    reasons = {
        "groups": "assigns each document to its own ranks",
        "cache-ring": "lays out the cache and new tokens separately",
    }
    own, place = list[str](), list[str]()
    for name in rl.SCHEDULES:
        for kinds, layout in ((own, "zigzag"), (place, "heap")):
            try:
                rl.plan(name, SMALL, 4, layout=layout)
            except rl.PlanError:
                kinds.append(name)
    by_place = [name for name in place if name not in own]
    if set(by_place) != set(reasons):
        raise AssertionError(f"{by_place} take no layout by work, but declared are {[*reasons]}")
    yield "Every schedule accepts every layout, with these exceptions:"
    yield ""
    listed = ", ".join(f"`{name}`" for name in own)
    yield f"* {listed}: their steps depend on the order of tokens or heads."
    yield from (f"* `{n}` {reasons[n]}, so it accepts no layout by work." for n in by_place)


def refused_word(word: str) -> str:
    """Returns the error for a feature that is not a mask."""
    from ringloom.planner.masks import parse

    try:
        parse(f"causal & {word}")
    except rl.PlanError as error:
        return f"{word}: {error}"
    raise AssertionError(f"{word} was not refused")
