"""Runs the notebooks and stores their outputs in them:  python docs/run_notebooks.py

Outputs are text, HTML tables and PNG pictures. Jupyter is not needed.
"""

import ast
import base64
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
DPI = 64  # small files, legible labels
VALUE_NAME = "_value_of_cell"


def run(
    document: dict[str, Any], scope: dict[str, Any], compiler: Callable[..., Any] = compile
) -> dict[str, Any]:
    """Returns a notebook with the outputs of its cells, which run in order in one namespace."""
    import matplotlib

    cells, count = [], 0
    with matplotlib.rc_context({"backend": "agg"}):
        for cell in document["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                shown = run_cell("".join(cell["source"]), count, scope, compiler)
                cell = cell | {"execution_count": count, "outputs": shown}
            cells.append(cell)
    return document | {"cells": cells}


def run_cell(
    source: str, count: int, scope: dict[str, Any], compiler: Callable[..., Any]
) -> list[dict[str, Any]]:
    """Runs a cell; returns what it prints, the value of its last line and its pictures."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr) and not source.endswith(";"):
        tree.body[-1] = ast.Assign([ast.Name(VALUE_NAME, ast.Store())], last.value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compiler(ast.unparse(ast.fix_missing_locations(tree)), "cell", "exec"), scope)
    shown = []
    if printed.getvalue():
        shown.append(
            {"name": "stdout", "output_type": "stream", "text": to_lines(printed.getvalue())}
        )
    if (value := scope.pop(VALUE_NAME, None)) is not None:
        kind = {"execution_count": count, "output_type": "execute_result"}
        shown.append({"data": representations(value), "metadata": {}, **kind})
    return shown + [
        {"data": {"image/png": picture}, "metadata": {}, "output_type": "display_data"}
        for picture in pictures()
    ]


def representations(value: Any) -> dict[str, list[str]]:
    """Returns the text of a value and, where it has one, its HTML."""
    html = getattr(value, "_repr_html_", None)
    return ({"text/html": to_lines(html())} if html else {}) | {"text/plain": to_lines(repr(value))}


def pictures() -> list[str]:
    """Returns the open figures as PNG in base64, and closes them."""
    from matplotlib import pyplot

    files = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", dpi=DPI, bbox_inches="tight")
        files.append(base64.b64encode(file.getvalue()).decode())
    pyplot.close("all")
    return files


def to_lines(text: str) -> list[str]:
    """Returns a text as notebooks store it, line by line."""
    return text.splitlines(keepends=True)


def main() -> None:
    """Runs each notebook and writes it back."""
    for page in NOTEBOOKS:
        document = run(json.loads(page.read_text(encoding="utf-8")), {})
        text = json.dumps(document, indent=1, ensure_ascii=False)
        page.write_text(text + "\n", encoding="utf-8")
        print(f"{page.name}: {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
