"""The command line in this process."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from ringloom.cli import main


@dataclass(frozen=True)
class CommandLine:
    """Runs commands; a test has it as the fixture `ringloom`."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str, status: int = 0) -> str:
        """Returns what a command prints."""
        self.capsys.readouterr()
        assert main([*words]) == status
        printed, complaint = self.capsys.readouterr()
        assert complaint == "" or status
        return printed

    def narrow(self, *words: str) -> str:
        """Returns what a command prints in 80 columns."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            shown = self(*words)
        assert max(map(len, shown.splitlines())) <= 80
        return shown

    def json(self, *words: str, status: int = 0) -> Any:
        """Returns the one object that a command prints with --json."""
        return json.loads(self(*words, "--json", status=status))

    def refused(self, *words: str) -> str:
        """Returns the one line on stderr by which a command refuses what it is given."""
        self.capsys.readouterr()
        assert main([*words]) == 2
        printed = self.capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("ringloom: ")
        assert printed.err.count("\n") == 1
        return printed.err
