"""Print a shell completion script.

Example:
  source <(ringloom completion bash)
  ringloom completion fish > ~/.config/fish/completions/ringloom.fish
"""

import click
from click.shell_completion import get_completion_class

from ringloom.cli.output import show


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    cli = click.get_current_context().find_root().command
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.UsageError(f"the installed click does not support completion for {shell}")
    script = completion_class(cli, {}, "ringloom", "_RINGLOOM_COMPLETE").source()
    show({"shell": shell, "script": script}, text=script)
