"""The support matrix: schedule x workload x pass x program, each cell tried as it is written."""

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
# form: the only rows that it takes, and why no program can take the others
HOLES = {
    "jax --dynamic": (
        {"full"},
        (
            "A compiled program sends what was fixed before its mask is known: as any message may"
            " be needed by one, it is made of plans for the mask full."
        ),
    ),
}

LARGE: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
# schedules whose loops grow with the ranks, and why
IRREGULAR = {
    "multi-ring": (
        "No mesh makes shifts of its rings: each is a permutation of its own, and there are as many"
        " as a rank has links."
    ),
    "pass-q": (
        "The results for all other ranks wait everywhere and leave in one step, each by another"
        " distance: one transfer per distance."
    ),
    "startrail": (
        "Sections, teams and members are three axes of a mesh, and programs of loops name two,"
        " `outer` and `inner`: on 8 ranks `plan` shows three, in 9 statements. With one section, on"
        " 4 or 9 ranks, it is loops. Member c begins with what comes from c sections on, which is"
        " no shift by one number on any mesh: a message for each member."
    ),
    "tree": (
        "Each level sends as many values as all levels before it together, and twice as far: one"
        " transfer per level, and one attended value per rank."
    ),
}


# workloads of which programs are loops for some schedules only, and why
PARTLY = {
    "causal window": (
        {"mask": "causal & window:10000"},
        (
            "Only what is needed travels, and a window needs other pieces of one rank than of the"
            " next: pieces part, end their way at different ranks, and their sums come back from"
            " there. Where no condition on the step and the rank says which, as of two pieces per"
            " rank that go around, tables do. So do they for `usp`, whose loops `plan` shows in 6"
            " and 8 statements: what goes around is a part of what an exchange brought, and"
            " programs know the positions of whole ranks. What stays whole is loops: gathers,"
            " exchanges of heads, and stripes, of which a window needs as much on every rank."
        ),
    ),
    "causal documents": (
        {"mask": "causal & documents:16384,16384,16384,16384"},
        (
            "As under windows: which ranks share a document, and so which pieces travel, is a list"
            " of ranks. `usp` is loops where documents end where groups of ranks do."
        ),
    ),
    "heads that the ranks do not divide": (
        {"mask": "causal", "heads": 12, "kv_heads": 6},
        (
            "Ranks get slices of heads of different sizes, or several ranks the same ones, where"
            " loops exchange equal slices. It concerns all who exchange or gather by heads."
        ),
    ),
}


def workload(row: str) -> rl.Workload:
    """The workload of a row: a mask on 37 tokens, or another shape under a causal mask."""
    fields = {name: getattr(SMALL, name) for name in ("seq", "heads", "kv_heads", "head_dim")}
    fields |= {"dtype": "float64", "mask": MASKS.get(row, rl.Causal())} | SHAPES.get(row, {})
    return rl.Workload(**fields)


def refusals(schedule: str, row: str, ranks: int = 4) -> dict[str, str]:
    """Returns the forms that are refused, with their messages.

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
    """The forms that a row is not for, whatever the schedule."""
    return {form for form, (rows, _) in HOLES.items() if row not in rows}


def matrix(names: Iterable[str], rows: Iterable[str]) -> Lines:
    """Every form, for which rows it goes, and why not for others.

    Raises AssertionError where a cell is not as `HOLES` says.
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
    """Returns the lines of a program of loops on 8 ranks, 0 for one by tables."""
    plans = rl.plan(schedule, rl.Workload(seq=2**16, **LARGE | fields), 8, pass_="both")
    source = rl.emit(plans, target)
    return 0 if "(as tables" in source.replace("\n", " ") else source.count("\n")


def size(schedule: str, mask: str, target: str) -> int:
    """Returns the lines of a program under a full or a causal mask, 0 for one by tables.

    Raises AssertionError for tables or loops that are not as declared.
    """
    count = lines(schedule, target, mask=mask)
    if (not count) != (schedule in IRREGULAR):
        raise AssertionError(f"{schedule}, {mask}, {target}: {'loops' if count else 'tables'}")
    return count


def programs(names: Iterable[str]) -> Lines:
    """The lines of every schedule's programs, and why some are tables."""
    yield from ("| causal, 8 ranks, both passes | torch | JAX |", "|---|---|---|")
    for name in names:
        counts = [size(name, "causal", target) for target in TARGETS]
        yield f"| `{name}` | {' | '.join(str(count or 'tables') for count in counts)} |"
    yield from ("", "Loops that would grow with the number of ranks are printed as tables:", "")
    yield from (f"* `{name}`: {reason}" for name, reason in IRREGULAR.items())


def partly(names: Iterable[str]) -> Lines:
    """For which workloads which programs are loops, with their lines, and why others are not."""
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
    """The matrix, the kinds of programs, and what cannot be a plan."""
    yield from ("# Support matrix", "")
    yield from (
        "Every schedule was tried with every mask and every shape when this page was built, with",
        "37 tokens on 4 ranks. Forward and backward: the plans were verified, and run on virtual",
        "ranks they agree with dense attention to 1e-12 (gradients to 1e-11) and leak nothing.",
        "Programs: the pair was emitted; that programs are exact, the tests show by running them.",
        "",
    )
    yield from matrix(rl.SCHEDULES, ROWS)
    yield from (f"Schedules: {', '.join(f'`{name}`' for name in rl.SCHEDULES)}.", "")
    yield from (f"Masks: {', '.join(MASKS)}. Shapes, under a causal mask: {', '.join(SHAPES)}.", "")
    yield from ("## Loops and tables", "", *programs(rl.SCHEDULES), "")
    yield from (
        "Under other masks, and with other heads. Where tiles are cut at run time, by the mask's",
        "own bands, that takes some fifty lines: the boxes, their cutting, the merging of tiles,",
        "and a self-check of some rows, as such programs hold for their own lengths only.",
        "",
        *partly(rl.SCHEDULES),
        "",
    )
    yield from ("## Layouts", "", *layouts(), "")
    yield from ("## Refused by name", "")
    yield from ("Weights are not masks, and no plan expresses them:", "", "```text")
    for word in ("dropout", "alibi", "softcap", "sinks"):
        yield from textwrap.wrap(refused_word(word), 88, subsequent_indent="    ")
    yield from ("```", "")


def layouts() -> Lines:
    """Lists schedules that take no layout, or none that reads the mask, each tried, and why."""
    reasons = {
        "groups": "lays out each document on ranks of its own",
        "cache-ring": "lays out cache and new tokens apart",
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
    yield "Every schedule takes every layout, but for these:"
    yield ""
    listed = ", ".join(f"`{name}`" for name in own)
    yield f"* {listed}: their rounds follow from the order of tokens or heads."
    yield from (f"* `{n}` {reasons[n]}: no layout that reads the whole mask." for n in by_place)


def refused_word(word: str) -> str:
    """Returns the error for a mask that has no form."""
    from ringloom.planner.masks import parse

    try:
        parse(f"causal & {word}")
    except rl.PlanError as error:
        return f"{word}: {error}"
    raise AssertionError(f"{word} was not refused")
