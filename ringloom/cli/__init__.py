"""The command line: every command takes --json, exits 0, 2 on bad input, 1 on a failed check.

A command is a file here, whose first sentence is what `ringloom --help` says of it. It is imported
when it runs, or when its own help is asked for.
"""

import ast
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from planner.errors import RingloomError
from planner.version import VERSION
from runtimes.errors import RankError

COMMANDS = (
    *("calibrate", "check", "compare", "emit", "explore", "figures", "fit", "formula", "plan"),
    *("report", "reproduce", "run", "schedules", "simulate", "tables"),
)


class Commands(click.Group):
    """Commands by the names of their files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its first sentence, which is read without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(name)) for name in COMMANDS])


def command_of(name: str) -> click.Command:
    """A command, imported now."""
    command: click.Command = import_module(f"{__name__}.{name}").command
    return command


def first_sentence(name: str) -> str:
    """Returns what the file of a command begins with."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition(".\n")[0].removesuffix(".")


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80}
)
@click.version_option(VERSION, prog_name="ringloom")
def cli() -> None:
    """Plan distributed attention, verify it, predict it, run it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status, with bad input told in one line on stderr."""
    try:
        return int(cli.main(arguments, prog_name="ringloom", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message(), err=True)
    except click.ClickException as error:
        click.echo(f"ringloom: {' '.join(error.format_message().split())}", err=True)
    except RingloomError as error:
        click.echo(f"ringloom: {' '.join(str(error).split())}", err=True)
    except RankError as error:  # its lines are a traceback: of the rank, not of the command
        click.echo(f"ringloom: {error}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 2
