"""format_source(text)   formats a program with ruff; no other code breaks lines."""

import subprocess

from ruff.__main__ import find_ruff_bin

COLUMNS = 100


def format_source(text: str) -> str:
    """Formats Python source, which takes some 20 ms; raises SyntaxError if it is invalid."""
    command = [find_ruff_bin(), "format", "--isolated", f"--line-length={COLUMNS}", "-"]
    run = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if run.returncode:
        raise SyntaxError(f"{run.stderr.strip()}\n{text}")
    return run.stdout
