"""Ruff's complaints about emitted files."""

import subprocess
import sys
from pathlib import Path

RUFF = {
    "check": ("--select=B,C4,E,F,I,ISC,NPY,PERF,PIE,RUF,SIM,UP,W", "--ignore=E741,SIM108"),
    "format": ("--check", "--diff"),
}


def assert_as_ruff_has_it(folder: Path) -> None:
    """Fails with ruff's words where `ruff check` or `ruff format --check` finds anything."""
    files = sorted(map(str, folder.glob("*.py")))
    assert files, "no file: a check that finds nothing must not pass"
    for command, options in RUFF.items():
        call = [
            sys.executable,
            "-m",
            "ruff",
            command,
            "--isolated",
            "--line-length=100",
            *options,
            *files,
        ]
        ran = subprocess.run(call, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
