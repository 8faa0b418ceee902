"""Runs the commands of a page in order, at every build, and shows their output below them.

A block also gets a picture: its first comparison or timeline, the tiles of its first plan, the
pairs of an audit, or the first figure that it writes.

Blocks that contain their output stay as they are: the tests compare it with the real output.
Commands and Python that need a library which is not installed are skipped.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from audit_pairs import draw_pairs
from matplotlib.figure import Figure
from pages import FENCE, STATUS, Block, blocks, execute
from plan_tiles import draw_tiles

from ringloom.auditing.verdict import Audit
from ringloom.figures import sheet
from ringloom.planner.files.digest import digest
from ringloom.planner.plans import Plans
from ringloom.planner.version import VERSION
from ringloom.simulator.pictures import FEW
from ringloom.sweeps.grid import outcome, read_grid
from ringloom.sweeps.results import profiles
from ringloom.sweeps.run import standings

PICTURES = Path(__file__).parent / "generated/pictures"
MAX_LINES, LAST_LINES = 24, 7  # lines of output on a page, and how many come from the end
INK = "#757575"  # readable on white and on black
STYLE = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
WIDTH, MAX_LENGTH = 80, 100  # columns of a page; longer lines than this are wrapped
LIBRARIES = {"audit": "torch", "check": "torch", "report": "bokeh", "sweep": "pyarrow"}
DRAWN_RESULTS = (  # modules of commands, and the functions whose first result is drawn
    *(("explore.compare", "compare_schedules"), ("explore.report", "compare_schedules")),
    *(("explore.simulate", "simulate"), ("explore.plan", "plans_of")),
    *(("programs.emit", "plans_of"), ("check.audit", "run_audit")),
)


def with_outputs(page: Path) -> str:
    """Returns the Markdown of a page with the output of each block below it."""
    outputs = {block.line: (block, *results) for block, *results in _run(page)}
    text, shown = page.read_text(encoding="utf-8"), ""
    copied, pending = 0, ""
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start(2)) + 1
        shown += text[copied : fence.end()] + pending
        copied, pending = fence.end(), ""
        if line not in outputs:
            continue
        block, printed, image = outputs[line]
        shown += f"\n\n```text\n{printed}\n```" if printed else ""
        pending = f"\n\n{image}\n" if image else ""
        if block.output is None:
            shown, pending = shown + pending, ""
    return shown + pending + text[copied:]


def _run(page: Path) -> Iterator[tuple[Block, str, str]]:
    """Yields each block of commands, its output, and its picture."""
    scope, drawn_plans, unbound = dict[str, Any](), set[str](), set[str]()
    writes_files = "write_text" in page.read_text(encoding="utf-8")  # for commands to read
    folder, style = tempfile.TemporaryDirectory(), patch.dict(sheet.STYLE, STYLE)
    with folder as path, contextlib.chdir(path), style:
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "python" and writes_files and can_run(block.text, unbound):
                execute(block, page, scope)
            elif block.language == "console":
                with collected_results() as results:
                    has_output = bool(block.shown.strip())
                    printed = "" if has_output else "\n\n".join(filter(None, _outputs(block)))
                plans = {str(digest(plans)) for plans in results[:1] if isinstance(plans, Plans)}
                is_repeated = bool(plans) and plans <= drawn_plans  # each plan is drawn only once
                drawn_plans |= plans
                yield block, printed, "" if is_repeated else picture(page, block, results)


def can_run(code: str, unbound: set[str]) -> bool:
    """Returns False if Python needs a library that is not installed, or an unbound name.

    The names that such code would have bound are then added to `unbound`.
    """
    nodes = list(ast.walk(ast.parse(code)))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {alias.asname or alias.name for alias in aliases}
    bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    installed = all(find_spec(module.partition(".")[0]) for module in modules)
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound
    if not installed or unbound & read:
        unbound |= bound
        return False
    unbound -= bound
    return True


@contextlib.contextmanager
def collected_results() -> Iterator[list[Any]]:
    """Collects the results of the functions in DRAWN_RESULTS."""
    results = list[Any]()

    def collect(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        results.append(function(*arguments, **options))
        return results[-1]

    with contextlib.ExitStack() as stack:
        for command, name in DRAWN_RESULTS:
            module = import_module(f"ringloom.cli.{command}")
            function = partial(collect, getattr(module, name))
            stack.enter_context(patch.object(module, name, function))
        yield results


def picture(page: Path, block: Block, results: list[Any]) -> str:
    """Draws the first result or written figure of a block; returns the Markdown that shows it."""
    name, title = f"{page.stem}-{block.line}", ""
    words = shlex.split(block.commands[0]) if block.commands else []
    if results:
        title, draw = drawing(results[0])
        sheet.write(draw, name, PICTURES, ("svg",))
    elif words[:2] == ["ringloom", "figures"]:
        title, files = "The first figure", sorted(Path(words[-1]).glob("*.svg"))
        PICTURES.mkdir(parents=True, exist_ok=True)
        shutil.copy(files[0], PICTURES / f"{name}.svg")
    elif words[:2] == ["ringloom", "sweep"]:
        title, grid = "Performance profile of the schedules", read_grid(Path(words[2]))
        rows = [outcome(*grid.point(number), VERSION)["row"] for number in range(len(grid))]
        draw = partial(profiles, standings(rows, list(grid.axes)))
        sheet.write(draw, name, PICTURES, ("svg",))
    return f"![{title}]({os.path.relpath(PICTURES, page.parent)}/{name}.svg)" if title else ""


def drawing(result: Any) -> tuple[str, Callable[[], Figure]]:
    """Returns the title of the picture of a result, and a function that draws it."""
    if isinstance(result, Audit):
        return "Pairs: expected, computed, and the difference", partial(draw_pairs, result)
    if hasattr(result, "plot_timeline"):
        return "Timeline of the ranks", partial(
            _plot_figure, result.plot_timeline, min(result.ranks, FEW)
        )
    if hasattr(result, "plot"):
        return "Times of the schedules", partial(_plot_figure, result.plot, len(result.cases))
    return "Tiles of the mask, with the rank and step that attends each", partial(
        draw_tiles, result
    )


def _plot_figure(plot: Callable[..., Any], rows: int) -> Figure:
    figure = Figure(figsize=(7.0, 0.9 + 0.28 * rows), layout="constrained")
    plot(figure.subplots())
    return figure


def _outputs(block: Block) -> list[str]:
    """Returns the output of each command of a block, below the command if several print."""
    outputs = [output(command) for command in block.commands]
    if sum(map(bool, outputs)) > 1:
        shown = zip(block.commands, outputs, strict=True)
        return [f"$ {fold_command(command)}\n{text}" for command, text in shown if text]
    return outputs


def fold_command(command: str) -> str:
    """Returns a command, folded to the width of a page; options stay with their values."""
    words = re.sub("(--[a-z-]+) (?=[^-])", "\\1\0", re.sub(" +", " ", command))
    return " \\\n    ".join(_wrap(words))


def _wrap(line: str) -> list[str]:
    protected = re.sub('"[^"]*"', lambda quoted: quoted[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(protected, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in parts]


def output(command: str) -> str:
    """Returns the output of a command, 80 columns wide and shortened; "" if it is not run."""
    from ringloom.cli import main

    words = shlex.split(command.removesuffix(STATUS), comments=True)
    if words[0] != "ringloom" or not find_spec(LIBRARIES.get(words[1], "ringloom")):
        return ""
    stream = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": str(WIDTH)}), contextlib.redirect_stdout(stream):
        status = main(words[1:])
    if command.endswith(STATUS):
        stream.write(f"{status}\n")
    else:
        assert status == 0, shlex.join(words)
    lines = [line.rstrip() for line in stream.getvalue().rstrip().splitlines()]
    lines = [part for line in lines for part in (_wrap(line) if len(line) > MAX_LENGTH else [line])]
    omitted = len(lines) - MAX_LINES
    if omitted <= 1:
        return "\n".join(lines)
    first = lines[: MAX_LINES - LAST_LINES]
    return "\n".join([*first, f"... {omitted} more lines ...", *lines[-LAST_LINES:]])
