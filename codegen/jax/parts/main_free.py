"""The self-check as a command, at any length that the program takes."""

import argparse
import sys
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from codegen.jax.parts.check import check

RANKS = CHECKED = 1


def main() -> int:
    """Compare this program with dense attention, on devices or on virtual ones of a CPU."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq", type=int, default=CHECKED, help="tokens; default: %(default)s")
    seq = parser.parse_args().seq
    return check(seq, seq)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main())
