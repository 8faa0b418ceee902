"""This machine: its processor, its memory, the CPU time of a thread."""

import os
import platform
import socket
import time
from collections.abc import Callable


def processor() -> str:
    """Returns the name of this machine's processor."""
    named = list[str]()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = [line for line in file if line.startswith("model name")]
    except OSError:
        pass  # not Linux
    name = named[0].partition(":")[2].strip() if named else ""
    return name or platform.processor() or platform.machine() or socket.gethostname()


def memory_bytes() -> float:
    """Returns the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cpu_seconds(run: Callable[[], object], times: int) -> float:
    """Returns the CPU seconds of this thread in `times` calls."""
    began = time.thread_time()
    for _ in range(times):
        run()
    return time.thread_time() - began
