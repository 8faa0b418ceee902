"""Shows the output of a page's commands below them; every build runs them, in the page's order.

A block also gets a picture: its first comparison or timeline, the tiles of its first plan, the
pairs of an audit, or the first figure that it writes.

Blocks that already contain their output are not changed: the tests compare it with the real output.
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

from audit_pairs import pairs
from matplotlib.figure import Figure
from pages import FENCE, STATUS, Block, blocks, execute
from plan_tiles import tiles

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
LINES, LAST = 24, 7  # of output that a page shows at most; those of them from its end
INK = "#757575"  # readable on white and on black
ON_ANY = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
WIDE, LONG = 80, 100  # columns of a page, and the length from which lines are broken
NEEDS = {"audit": "torch", "check": "torch", "report": "bokeh", "sweep": "pyarrow"}
DRAWN = (  # commands, and the function of each whose first result is drawn
    *(("compare", "compared"), ("report", "compared"), ("simulate", "simulate")),
    *(("plan", "plans_of"), ("emit", "plans_of"), ("audit", "audited")),
)


def with_outputs(page: Path) -> str:
    """Returns the Markdown of a page with the output of each block below it."""
    outputs = {block.line: (block, printed, drawn) for block, printed, drawn in _run(page)}
    text, shown = page.read_text(encoding="utf-8"), ""
    at, below = 0, ""
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start(2)) + 1
        shown += text[at : fence.end()] + below
        at, below = fence.end(), ""
        if line not in outputs:
            continue
        block, printed, drawn = outputs[line]
        shown += f"\n\n```text\n{printed}\n```" if printed else ""
        below = f"\n\n{drawn}\n" if drawn else ""
        if block.prints is None:
            shown, below = shown + below, ""
    return shown + below + text[at:]


def _run(page: Path) -> Iterator[tuple[Block, str, str]]:
    """Yields each block of commands, its output, and its picture."""
    scope, seen, lost = dict[str, Any](), set[str](), set[str]()
    needed = "write_text" in page.read_text(encoding="utf-8")  # commands read what Python writes
    folder, look = tempfile.TemporaryDirectory(), patch.dict(sheet.STYLE, ON_ANY)
    with folder as place, contextlib.chdir(place), look:
        for block in blocks(page):
            if block.file:
                Path(block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "python" and needed and not lacking(block.text, lost):
                execute(block, page, scope)
            elif block.language == "console":
                with kept() as results:
                    silent = bool(block.shown.strip())
                    printed = "" if silent else "\n\n".join(filter(None, _outputs(block)))
                drawn = {str(digest(plans)) for plans in results[:1] if isinstance(plans, Plans)}
                same = bool(drawn) and drawn <= seen  # a page shows the tiles of a plan only once
                seen |= drawn
                yield block, printed, "" if same else picture(page, block, results)


def lacking(code: str, lost: set[str]) -> bool:
    """Returns True if Python needs a library that is not installed, or a name that is lost.

    The names that such a program would have bound become lost too.
    """
    nodes = list(ast.walk(ast.parse(code)))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {alias.asname or alias.name for alias in aliases}
    bound |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    lacks = not all(find_spec(module.partition(".")[0]) for module in modules)
    if lacks or lost & {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound:
        lost |= bound
        return True
    lost -= bound
    return False


@contextlib.contextmanager
def kept() -> Iterator[list[Any]]:
    """Collects the results of the functions of DRAWN."""
    results = list[Any]()

    def keep(asked: Callable[..., Any], *given: Any, **more: Any) -> Any:
        results.append(asked(*given, **more))
        return results[-1]

    with contextlib.ExitStack() as stack:
        for command, function in DRAWN:
            module = import_module(f"ringloom.cli.{command}")
            asked = partial(keep, getattr(module, function))
            stack.enter_context(patch.object(module, function, asked))
        yield results


def picture(page: Path, block: Block, results: list[Any]) -> str:
    """Draws the first result or written figure of a block; returns the Markdown that shows it."""
    name, what = f"{page.stem}-{block.line}", ""
    words = shlex.split(block.commands[0]) if block.commands else []
    if results:
        what, draw = drawing(results[0])
        sheet.write(draw, name, PICTURES, ("svg",))
    elif words[:2] == ["ringloom", "figures"]:
        what, written = "The first figure", sorted(Path(words[-1]).glob("*.svg"))
        PICTURES.mkdir(parents=True, exist_ok=True)
        shutil.copy(written[0], PICTURES / f"{name}.svg")
    elif words[:2] == ["ringloom", "sweep"]:
        what, grid = "Performance profile of the schedules", read_grid(Path(words[2]))
        rows = [outcome(*grid.point(number), VERSION)["row"] for number in range(len(grid))]
        draw = partial(profiles, standings(rows, list(grid.axes)))
        sheet.write(draw, name, PICTURES, ("svg",))
    return f"![{what}]({os.path.relpath(PICTURES, page.parent)}/{name}.svg)" if what else ""


def drawing(one: Any) -> tuple[str, Callable[[], Figure]]:
    """Returns the title of the picture of a result, and a function that draws it."""
    if isinstance(one, Audit):
        return "Pairs: expected, computed, and the difference", partial(pairs, one)
    if hasattr(one, "plot_timeline"):
        return "Timeline of the ranks", partial(_plotted, one.plot_timeline, min(one.ranks, FEW))
    if hasattr(one, "plot"):
        return "Times of the schedules", partial(_plotted, one.plot, len(one.cases))
    return "Tiles of the mask, with the rank and step that attends each", partial(tiles, one)


def _plotted(plot: Callable[..., Any], rows: int) -> Figure:
    figure = Figure(figsize=(7.0, 0.9 + 0.28 * rows), layout="constrained")
    plot(figure.subplots())
    return figure


def _outputs(block: Block) -> list[str]:
    """Returns the output of each command of a block, below the command if several print."""
    outputs = [output(command) for command in block.commands]
    if sum(map(bool, outputs)) > 1:
        told = zip(block.commands, outputs, strict=True)
        return [f"$ {folded(line)}\n{text}" for line, text in told if text]
    return outputs


def folded(command: str) -> str:
    """Returns a command, folded to the width of a page."""
    return " \\\n    ".join(_wrapped(re.sub(" +", " ", command)))


def _wrapped(line: str) -> list[str]:
    kept = re.sub('"[^"]*"', lambda quoted: quoted[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(kept, WIDE, break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in parts]


def output(command: str) -> str:
    """Returns the output of a command, 80 columns wide and shortened; "" if it is not run."""
    from ringloom.cli import main

    words = shlex.split(command.removesuffix(STATUS), comments=True)
    if words[0] != "ringloom" or not find_spec(NEEDS.get(words[1], "ringloom")):
        return ""
    said = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": str(WIDE)}), contextlib.redirect_stdout(said):
        status = main(words[1:])
    if command.endswith(STATUS):
        said.write(f"{status}\n")
    else:
        assert status == 0, shlex.join(words)
    lines = [line.rstrip() for line in said.getvalue().rstrip().splitlines()]
    lines = [part for line in lines for part in (_wrapped(line) if len(line) > LONG else [line])]
    left = len(lines) - LINES
    if left <= 1:
        return "\n".join(lines)
    first = lines[: LINES - LAST]
    return "\n".join([*first, f"... {left} more lines ...", *lines[-LAST:]])
