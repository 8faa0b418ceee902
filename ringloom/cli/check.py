"""Run an emitted file's own check against dense attention.

Outputs and gradients are compared; the exit status is 1 where one is wrong.

Example:
  ringloom check attention.py --seq 4096
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import click

from planner.disk import read
from planner.errors import RingloomError
from ringloom.cli.options import TOKENS
from ringloom.cli.output import Number, show, working

LARGEST = 1 << 28  # bytes of a program, whose tables may be long
KEPT = 4000  # characters of a program's last words that are kept
# The last line of a traceback, also of one of several ranks, but not of who started these.
ERROR = re.compile(r"(?:\[rank\d+\]: )?((?!.*ChildFailed)[A-Za-z][\w.]*(?:Error|Exception)\b.*)")
# What `positions` of a program says of a length that it does not take.
REFUSED = re.compile(r"ValueError: (\d+ tokens do not make|a layout of)")


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--seq", type=TOKENS, help="Query tokens of the check, by default the program's choice."
)
@click.option("--time-limit", type=Number(0, min_open=True), default=600.0, help="Seconds at most.")
def command(file: str, seq: int | None, time_limit: float) -> int:
    refuse_others(Path(file))
    path = str(Path(file).absolute())  # also where the name begins as options of Python do
    command = [sys.executable, path, *([] if seq is None else ["--seq", str(seq)])]
    try:
        with working("running the program's own check"):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=time_limit, check=False
            )
    except subprocess.TimeoutExpired:
        raise RingloomError(f"{file} ran for more than {time_limit:g} s") from None
    exact = done.returncode == 0
    output, errors = done.stdout, "" if exact else done.stderr
    said = first_errors(errors).strip()
    if done.returncode == 2 or (seq and REFUSED.match(said)):  # it refuses its options
        raise RingloomError(f"{file}: {said.splitlines()[-1].rpartition('rror: ')[2]}")
    document = {"file": file, "exact": exact, "output": (output + errors).strip()[-KEPT:]}
    show(document, text=(output + said).strip()[-KEPT:])
    return 0 if exact else 1


def first_errors(words: str) -> str:
    """The line of each error that a program raised, once; what it wrote where it raised none."""
    errors = [line[1] for line in map(ERROR.match, words.splitlines()) if line]
    return "\n".join(dict.fromkeys(errors)) or words


def refuse_others(file: Path) -> None:
    """Raises RingloomError for what is no program of `ringloom emit`, which says what it checks."""
    if not file.is_file():
        raise RingloomError(f"{file} is a folder" if file.is_dir() else f"no file {file}")
    statements = read(file, ast.parse, f"{file} cannot be read as Python", LARGEST).body
    functions = {part.name for part in statements if isinstance(part, ast.FunctionDef)}
    if not {"attention", "main"} <= functions or not isinstance(statements[-1], ast.If):
        raise RingloomError(
            f"{file} does not check itself: it is no whole program of `ringloom emit`"
        )
