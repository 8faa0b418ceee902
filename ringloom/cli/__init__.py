"""The command line: every command takes --json, exits 0, 2 on bad input, 1 on a failed check.

A command is a file here: its docstring is the command's help, its first sentence what
`ringloom --help` says of it, and what follows `Example:` the foot of the help. The file is imported
when the command runs, or when its own help is asked for.
"""

import ast
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from ringloom.cli.synonyms import renamed, unknown_option
from ringloom.planner.disk import can_name
from ringloom.planner.errors import LONGEST_WORD, Reasons, RingloomError, brief, printable, shown
from ringloom.planner.version import VERSION
from ringloom.runtimes.machine import RankError

GROUPS = {
    "Explore": (
        *("schedules", "plan", "compare", "search", "simulate"),
        *("sensitivity", "report", "explore", "sweep"),
    ),
    "Programs": ("emit", "tables"),
    "Check": ("run", "check", "audit"),
    "Hardware": ("hardware", "calibrate", "fit"),
    "Papers": ("formula", "reproduce", "figures"),
    "Shell": ("completion",),
}
COMMANDS = tuple(sorted(name for names in GROUPS.values() for name in names))
EXAMPLE = "\nExample:\n"
FIRST = f"\b{EXAMPLE}  ringloom compare --ranks 8 --seq 256k --kv-heads 8 --hardware h100"


class Commands(click.Group):
    """Commands by the names of their files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as they were typed, for what tells the command."""
        if wrong := [word for word in args if not can_name(word)]:
            raise click.UsageError(f"{brief(wrong[0])} holds a character that no name has")
        ctx.obj = [*args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the words; raises UsageError where an option has two values."""
        name, command, rest = super().resolve_command(ctx, args)
        if command and not ctx.resilient_parsing:  # as completion is
            parser = command.make_parser(click.Context(command, ctx))
            for one, times in Counter(parser.parse_args([*rest])[2]).items():
                if not isinstance(one, click.Option) or one.multiple or times < 2:
                    continue
                if one.secondary_opts or not one.is_flag:
                    raise click.UsageError(f"{one.opts[0]} is given {times} times: keep one")
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; where its reader has enough, as head has, it ends as other programs do."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            forget_output()
            raise click.exceptions.Exit(141) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its first sentence, which is read without importing it."""
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(10), first_sentence(name)) for name in names])


@cache
def command_of(name: str) -> click.Command:
    """A command, imported now, with --json; its docstring's examples stand below its options."""
    module, output = (import_module(f"{__name__}.{file}") for file in (name, "output"))
    command: click.Command = output.json_option(module.command)
    text, _, example = (module.__doc__ or "").partition(EXAMPLE)
    command.help, command.epilog = text, f"\b{EXAMPLE}{example}"
    return command


def examples(name: str) -> list[str]:
    """The example commands of a command's help."""
    return [line.strip() for line in docstring(name).partition(EXAMPLE)[2].splitlines() if line]


def first_sentence(name: str) -> str:
    """Returns what the file of a command begins with."""
    return docstring(name).partition("\n")[0].removesuffix(".")


def docstring(name: str) -> str:
    """Returns the docstring of a command's file, which is not imported."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text), clean=False) or ""


SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 80,
    "show_default": True,
    "token_normalize_func": renamed,
}


def forget_output() -> None:
    """Drops what could not be written to stdout, so that it is not tried again at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(error: click.ClickException) -> str:
    """Names of schedules go to an option where a command compares several."""
    context, message = getattr(error, "ctx", None), error.format_message()
    takes = context is not None and any(p.name == "schedules" for p in context.command.params)
    extra = message.startswith("Got unexpected extra argument")
    return ": name schedules as --schedules ring,zigzag" if takes and extra else ""


@click.group(
    cls=Commands, commands=dict.fromkeys(COMMANDS), context_settings=SETTINGS, epilog=FIRST
)
@click.version_option(VERSION, prog_name="ringloom")
def cli() -> None:
    """Plan distributed attention, verify it, predict it, run it."""


def _tell(text: str, words: Sequence[str]) -> None:
    """Writes one line on stderr, in which typed words are quoted in brief."""
    parts = (part for word in words for part in (word, *word.split("=")))
    for part in sorted((p for p in parts if len(p) > LONGEST_WORD), key=len, reverse=True):
        for form in (part, repr(part)[1:-1]):
            text = text.replace(form, f"{form[:120]}...{form[-40:]}")
    click.echo(f"ringloom: {shown(' '.join(text.split()))}", err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status, with bad input told in one line on stderr."""
    tell = partial(_tell, words=sys.argv[1:] if arguments is None else arguments)
    try:
        return int(cli.main(arguments, prog_name="ringloom", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message(), err=True)
    except click.NoSuchOption as error:
        tell(unknown_option(error))
    except click.ClickException as error:
        tell(f"{error.format_message()}{_hint(error)}")
    except Reasons as error:
        for line in f"ringloom: {error}".splitlines():
            click.echo(fill(line, 80, subsequent_indent="  "), err=True)
    except RingloomError as error:
        tell(str(error))
    except MemoryError as error:
        tell(f"this machine has not enough memory: {error}".rstrip(": "))
    except OSError as error:  # such as a full disk behind stdout
        tell(error.strerror or str(error))
        forget_output()
    except RankError as error:  # its lines are a traceback: of the rank, not of the command
        click.echo(f"ringloom: {printable(str(error))}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 2
