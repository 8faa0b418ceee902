"""The self-check as a command, at any length that the program takes."""

import argparse
import sys
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from codegen.jax.parts.check import main

RANKS = CHECKED = 1


def tokens_asked_for() -> int:
    """The argument of the command."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq", type=int, default=CHECKED, help="tokens; default: %(default)s")
    return int(parser.parse_args().seq)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", RANKS)
    sys.exit(main(tokens_asked_for()))
