"""The self-check as a command, at the lengths that the program is for."""

import sys
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from codegen.jax.parts.check import check

RANKS = SEQ = KV_SEQ = 1


def main() -> int:
    """Compare this program with dense attention, on devices or on virtual ones of a CPU."""
    return check(SEQ, KV_SEQ)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main())
