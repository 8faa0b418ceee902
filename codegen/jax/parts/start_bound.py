"""The self-check as a command, at the length that the program is for."""

import sys
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from codegen.jax.parts.check import main

RANKS = 1

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main())
