"""One server that forks all processes of tests: what they need was imported there, once."""

import multiprocessing
from multiprocessing import forkserver

import pytest

PRELOADED = (
    "pytest",
    "codegen",
    "planner.planning",
    "runtimes.torch.launch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
)


@pytest.fixture(scope="session")
def forked() -> None:
    """The server runs; whoever asks for others to be imported comes too late."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED])
    forkserver.ensure_running()
