"""One server that forks all processes of tests: what they need was imported there, once."""

import pytest

PRELOADED = (
    "pytest",
    "ringloom.codegen",
    "ringloom.planner.planning",
    "ringloom.runtimes.torch.launch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
)


@pytest.fixture(scope="session", autouse=True)
def forked() -> None:
    """The server runs; whoever asks for others to be imported comes too late."""
    from ringloom.runtimes.machine import serve

    serve(*PRELOADED)
