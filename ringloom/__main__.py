"""Runs the command line for `python -m ringloom`."""

import sys

from ringloom.cli import main

sys.exit(main())
