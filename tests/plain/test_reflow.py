"""Lines that are too long are broken as ruff breaks them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.reflow import WIDTH, reflow

NAMES = [f"some_name_{n}" for n in range(12)]
LONG = ", ".join(NAMES[:9])
STATEMENTS = [
    f"    x = attend({LONG})",
    f"    x = attend({', '.join(NAMES)})",
    f"    a, b = attend({LONG}, causal=True, scale=SCALE)",
    f"    x = {LONG}",
    f"    return exchange({', '.join(NAMES[:6])}) if step < RANKS - 1 else None",
    f"    x = exchange({', '.join(NAMES[:4])}) if step >= 2 and step % INNER == 0 else None",
    f"    visiting_queries = wait(exchange({', '.join(NAMES[:4])}, group)) or {NAMES[5]}",
    f"    x = [y[:, :, order] for y in gathered_from_everybody({', '.join(NAMES[:5])}, group)]",
    f"    return [(r, {NAMES[0]}) for r in range(RANKS) if r in {NAMES[1]} and r < ({LONG[:48]})]",
    f"    for total, share in zip({', '.join(NAMES[:6])}, strict=True):\n        pass",
    f"    x = lax.cond(rank <= 2, lambda a, b, n=n: meet({', '.join(NAMES[:4])}), lambda: same)",
    f"    x = lax.switch(index, [lambda: meet({LONG}), lambda: same], *operands)",
    f"    x = lax.cond(((step >= 1) & (step <= 3)) | ((step >= 6) & ({LONG[:40]} == 4)), same)",
    "    x = 1  # short",
]


def test_lines_are_broken_as_ruff_breaks_them(tmp_path: Path) -> None:
    bodies = ["\n".join(reflow(statement.split("\n"))) for statement in STATEMENTS]
    assert max(len(line) for body in bodies for line in body.split("\n")) <= WIDTH
    (path := tmp_path / "broken.py").write_text(
        "\n\n\n".join(f"def function_{n}():\n{body}" for n, body in enumerate(bodies)) + "\n"
    )
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=100", "--diff"]
    ran = subprocess.run([*ruff, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("statement", STATEMENTS)
def test_broken_lines_mean_what_they_meant(statement: str) -> None:
    head = "def function():\n"
    broken = "\n".join(reflow(statement.split("\n")))
    assert ast.dump(ast.parse(head + broken)) == ast.dump(ast.parse(head + statement))


def test_what_no_bracket_holds_is_left_as_it_is() -> None:
    word = "x" * 120
    assert reflow([word, f"# {word}"]) == [word, f"# {word}"]
