"""The command line. Every command takes --json and exits with 0, 1 or 2.

0: success. 1: a check failed. 2: invalid input.

Each help group is a folder, and each command is a file in it. The docstring of the file is the help
text: `ringloom --help` shows its first sentence, and the text after `Example:` ends the help of the
command. A file is imported only when its command runs or shows its help.
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

from ringloom.cli.synonyms import current_name, unknown_option_message
from ringloom.planner.disk import is_file_name
from ringloom.planner.errors import (
    LONGEST_WORD,
    MultiPlanError,
    RingloomError,
    brief,
    printable,
    safe_text,
)
from ringloom.planner.version import VERSION
from ringloom.runtimes.machine import RankError

GROUPS = {  # heading: commands; the folder of a group is its heading in lower case
    "Explore": (
        *("schedules", "plan", "compare", "search", "simulate", "advise"),
        *("sensitivity", "report", "explore", "sweep"),
    ),
    "Programs": ("emit", "tables"),
    "Check": ("run", "check", "audit"),
    "Hardware": ("hardware", "calibrate", "fit"),
    "Papers": ("formula", "reproduce", "figures"),
    "Shell": ("completion",),
}
FOLDERS = {name: group.lower() for group, names in GROUPS.items() for name in names}
COMMANDS = tuple(sorted(FOLDERS))
EXAMPLE = "\nExample:\n"
HELP_EXAMPLE = f"\b{EXAMPLE}  ringloom compare --ranks 8 --seq 256k --kv-heads 8 --hardware h100"


class Commands(click.Group):
    """The group of all commands, each named after its file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stores the words as typed, for `typed_command`; refuses invalid characters."""
        if refused := [word for word in args if not is_file_name(word)]:
            raise click.UsageError(
                f"{brief(refused[0])} contains a character that is not allowed in names"
            )
        ctx.obj = [*args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command with this name, or None."""
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command; raises UsageError if an option is given more than once."""
        name, command, words = super().resolve_command(ctx, args)
        if command and not ctx.resilient_parsing:  # shell completion sets it
            parser = command.make_parser(click.Context(command, ctx))
            for option, count in Counter(parser.parse_args([*words])[2]).items():
                if not isinstance(option, click.Option) or option.multiple or count < 2:
                    continue
                if option.secondary_opts or not option.is_flag:
                    raise click.UsageError(f"{option.opts[0]} is given {count} times: give it once")
        return name, command, words

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; exits with 141 if the reader of its output closes the pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            raise click.exceptions.Exit(141) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes each command with its first sentence, without importing the file."""
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(10), first_sentence(name)) for name in names])


@cache
def command_of(name: str) -> click.Command:
    """Imports a command, adds --json, and splits its docstring into help and examples."""
    module = import_module(f"{__name__}.{FOLDERS[name]}.{name}")
    output = import_module(f"{__name__}.output")
    command: click.Command = output.json_option(module.command)
    text, _, example = (module.__doc__ or "").partition(EXAMPLE)
    command.help, command.epilog = text, f"\b{EXAMPLE}{example}"
    return command


def examples(name: str) -> list[str]:
    """Returns the examples in the help of a command."""
    return [line.strip() for line in docstring(name).partition(EXAMPLE)[2].splitlines() if line]


def first_sentence(name: str) -> str:
    """Returns the first sentence of a command's docstring."""
    return docstring(name).partition("\n")[0].removesuffix(".")


def docstring(name: str) -> str:
    """Returns the docstring of a command's file without importing it."""
    file = Path(__file__).parent / FOLDERS[name] / f"{name}.py"
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")), clean=False) or ""


SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 80,
    "show_default": True,
    "token_normalize_func": current_name,
}


def discard_output() -> None:
    """Discards output that could not be written, so that Python does not retry it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(error: click.ClickException) -> str:
    """Returns a hint if schedules are typed as arguments where --schedules is meant."""
    context, message = getattr(error, "ctx", None), error.format_message()
    has_option = context is not None and any(p.name == "schedules" for p in context.command.params)
    is_extra = message.startswith("Got unexpected extra argument")
    return ": give schedules as --schedules ring,zigzag" if has_option and is_extra else ""


@click.group(
    cls=Commands, commands=dict.fromkeys(COMMANDS), context_settings=SETTINGS, epilog=HELP_EXAMPLE
)
@click.version_option(VERSION, prog_name="ringloom")
def cli() -> None:
    """Plan, verify, simulate and run distributed attention."""


def _report(text: str, words: Sequence[str]) -> None:
    """Writes one line to stderr; shortens long words of the command."""
    parts = (part for word in words for part in (word, *word.split("=")))
    for part in sorted((p for p in parts if len(p) > LONGEST_WORD), key=len, reverse=True):
        for form in (part, repr(part)[1:-1]):
            text = text.replace(form, f"{form[:120]}...{form[-40:]}")
    click.echo(f"ringloom: {safe_text(' '.join(text.split()))}", err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status; reports invalid input in one line on stderr."""
    report = partial(_report, words=sys.argv[1:] if arguments is None else arguments)
    try:
        return int(cli.main(arguments, prog_name="ringloom", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
    except click.NoSuchOption as error:
        report(unknown_option_message(error))
    except click.ClickException as error:
        report(f"{error.format_message()}{_hint(error)}")
    except MultiPlanError as error:
        for line in f"ringloom: {error}".splitlines():
            click.echo(fill(line, 80, subsequent_indent="  "), err=True)
    except RingloomError as error:
        report(str(error))
    except MemoryError as error:
        report(f"not enough memory on this machine: {error}".rstrip(": "))
    except OSError as error:  # such as output to a full disk
        report(error.strerror or str(error))
        discard_output()
    except RankError as error:  # with the traceback of a rank
        click.echo(f"ringloom: {printable(str(error))}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 2
