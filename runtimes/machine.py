"""The machine that this process is on."""

import os


def memory_bytes() -> float:
    """Returns the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
