"""Generates pages from code: each page has a function that returns its Markdown.

`docs/conf.py` writes the pages into docs/generated/ before every build.
"""

import re
from collections.abc import Callable

import click
import measurements
import model
import questions
import searched
from markdown import Lines, table
from support import support

import ringloom as rl
from ringloom.cli import COMMANDS, command_of, examples
from ringloom.planner.layouts import PEER_NAMES
from ringloom.planner.schedules import PLAIN_NAMES
from ringloom.reproduce import pages as in_terminal
from ringloom.reproduce.papers import PAPERS
from ringloom.reproduce.tables import Line
from ringloom.simulator.hardware import machines
from ringloom.simulator.hardware.schema import unit_of

# ---- the command line


def command_line() -> Lines:
    """Lists every command with its help, arguments and options, read from the program."""
    yield "# The command line"
    yield ""
    yield from (
        "Every command takes `--json`, which prints one JSON object to stdout and nothing else.",
        "The exit status is 2 on bad input, with one line on stderr, and 1 after a failed check.",
        "",
    )
    for name in COMMANDS:
        command = command_of(name)
        context = click.Context(command, info_name=f"ringloom {name}")
        yield f"## `ringloom {name}`"
        yield ""
        yield from (" ".join((command.help or "").split()), "")
        yield from ("```text", " ".join(context.command.get_usage(context).split()), "```", "")
        yield from ("```bash", *examples(name), "```", "")
        options = (p for p in command.params if isinstance(p, click.Option))
        yield from table(("option", "meaning"), (option_row(o, context) for o in options))


def option_row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Returns an option as it is typed, and its help with its default."""
    syntax = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if not option.is_flag:
        syntax += f" *{option.make_metavar(context).lower().replace('|', ' | ')}*"
    default = option.get_default(context, call=False)
    meaning = option.help or ""
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        meaning += f" Default: {default}".replace(",", ", ")
    return syntax, re.sub(r"(?<!\S)--[a-z-]+", r"`\g<0>`", meaning).strip()


# ---- schedules and hardware


def schedules() -> Lines:
    """Lists schedules, and layouts with their names in other projects."""
    yield from ("# Schedules and layouts", "", "`ringloom schedules` prints this list:", "")
    rows = (
        (
            " or ".join(f"`{n}`" for n in (s.name, PLAIN_NAMES.get(s.name)) if n),
            s.travels,
            s.path,
            _parameters(s.parameters),
            s.paper,
        )
        for s in rl.SCHEDULES.values()
    )
    yield from table(("schedule", "what travels", "over which paths", "parameters", "from"), rows)
    yield from (
        "Other projects have other names for these layouts. Options accept both:",
        "`layout=head-tail` is `layout=zigzag`.",
        "",
    )
    yield from table(("in ringloom", "in other projects"), PEER_NAMES.items())


def _parameters(parameters: dict[str, int | str]) -> str:
    return " ".join(f"`{name}={default}`" for name, default in parameters.items())


def hardware() -> Lines:
    """Lists every preset with its constants, their sources, and whether they were measured."""
    yield from (
        "# Hardware presets",
        "",
        "*Assumed* marks constants that were not measured on that hardware.",
        "",
    )
    marks = {True: "", False: " **(assumed)**"}
    for name in machines():
        yield from (f"## {name}", "")
        constants = rl.hardware(name).constants.items()
        rows = (
            (f"`{key}`", f"{c.value:.4g}", unit_of(key).name, f"{c.source}{marks[c.calibrated]}")
            for key, c in constants
        )
        yield from table(("constant", "value", "unit", "source"), rows)


# ---- published numbers


def reproduction() -> Lines:
    """Summarises the agreement of each published table, then lists every row."""
    papers = {paper: tables() for paper, tables in PAPERS.items()}
    yield from ("# Published numbers and ours", "")
    yield from (
        "This is the output of `ringloom reproduce all`. *Equal* counts rows with the same printed",
        "digits. *Mean* and *worst* are errors, relative or in percentage points (pp).",
        "*Rank* is Spearman's rank correlation. *Left out* counts two kinds of rows:",
        f"{in_terminal.ARITHMETIC}, which shows that the numbers were copied correctly;",
        f"and context: {in_terminal.CONTEXT}.",
        "",
    )
    published = [page for tables in papers.values() for page in tables]
    yield from table(in_terminal.HEADS, map(in_terminal.agreement, published))
    for page in published:
        yield from (f"## {page.title}", "")
        yield from table(("", "published", "ours", "error", ""), map(_cells, page.lines))
        yield from (page.note, "")


def _cells(line: Line) -> tuple[str, ...]:
    published, ours = (in_terminal.number(v, line.digits) for v in (line.published, line.ours))
    return line.what, published, ours, in_terminal.deviation(line), in_terminal.note(line)


PAGES: dict[str, Callable[[], Lines]] = {
    "command_line": command_line,
    "schedules": schedules,
    "hardware_presets": hardware,
    "model": model.page,
    "reproduction": reproduction,
    "validation": measurements.page,
    "support": support,
    "questions": questions.page,
    "searches": searched.page,
}
