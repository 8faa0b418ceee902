"""Commands with hostile words, run in this process."""

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from ringloom.cli import main
from ringloom.planner.errors import RingloomError
from ringloom.planner.files import save
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

SLOW = {
    "explore",
    "calibrate",
    "sweep",
    "check",
    "report",
    "figures",
    "reproduce",
    "sensitivity",
} | {"formula"}


def run_command(words: list[str], folder: Path) -> str:
    """Returns what a command prints; raises RingloomError with what it says of bad input.

    What is neither, such as several lines on stderr, is an AssertionError.
    """
    if not is_tried(words):
        raise RingloomError("not tried")
    if not (folder / "plan.json").exists():
        save(plan("ring", Workload(seq=12, heads=2, head_dim=2), 3), folder / "plan.json")
    (folder / "rows.csv").write_text("bytes,seconds\n1000,1e-5\n2000,2e-5\n")
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = main(words)
    printed, said = output.getvalue(), errors.getvalue()
    assert is_plain(printed), "control characters on stdout"
    assert is_plain(said), "control characters on stderr"
    assert "run" in words or "not enough memory" not in said  # of arrays as large as was asked for
    if status == 2:
        assert printed == "", "an answer beside an error"
        assert said.startswith("ringloom: ") or "Usage" in said
        assert said.count("\n") == 1 or "none of these schedules" in said, "several lines"
        raise RingloomError(" ".join(said.split()))
    assert status in (0, 1), f"exit status {status}"
    if "--json" in words and "--help" not in words and status == 0:
        assert isinstance(json.loads(printed), dict)
    return printed


def is_tried(words: list[str]) -> bool:
    """Returns False for what takes long, starts processes, or writes outside this folder."""
    outside = any("/" in word or ".." in word for word in words)
    backend = "run" in words and {"torch", "jax"} & {*words}
    return not (outside or backend or SLOW & {*words})


def is_plain(text: str) -> bool:
    lines = text.replace("\r\n", "\n").replace("\t", " ").split("\n")
    return all(map(str.isprintable, lines))
