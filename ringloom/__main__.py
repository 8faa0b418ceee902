"""`python -m ringloom` is `ringloom`."""

import sys

from ringloom.cli import main

sys.exit(main())
