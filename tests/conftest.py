"""Hypothesis profiles and golden texts, for every test."""

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: tests run side by side
os.environ.pop("PYTHONUNBUFFERED", None)  # commands buffer what they write, as users' do

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.register_assert_rewrite("command_line", "dense_attention", "rank_threads")
from command_line import CommandLine

gc.set_threshold(10_000)  # looking for cycles in torch and JAX takes time

# "ci" repeats itself exactly, so a failure belongs to the change; "nightly" looks for new ones.
SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=int(os.environ.get("RINGLOOM_EXAMPLES", "25")),
    derandomize=True,
    suppress_health_check=SLOW_MACHINE,
)
# Where it only matters that a test fails, nobody waits for its smallest example.
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=int(os.environ.get("RINGLOOM_EXAMPLES", "2000")),
    print_blob=True,
    suppress_health_check=SLOW_MACHINE,
)
settings.load_profile(os.environ.get("RINGLOOM_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Libraries and programs, which leave files in the temporary folder, get pytest's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("t")))
        patch.setenv("TMPDIR", str(tempfile.tempdir))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with tests/golden/TEST_NAME.txt; BLESS=1 accepts the text as it is now."""
    path = Path(__file__).parent / "golden" / f"{request.node.name}.txt"

    def check(text: str) -> None:
        if os.environ.get("BLESS") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden text {path.name} yet; BLESS=1 writes it"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def ringloom(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)
