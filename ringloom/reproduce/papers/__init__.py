"""The papers whose numbers are reproduced, by name."""

from collections.abc import Callable, Mapping

from ringloom.reproduce import validation
from ringloom.reproduce.papers import burst, distflash, ring, striped
from ringloom.reproduce.tables import Table

PAPERS: Mapping[str, Callable[[], list[Table]]] = {
    "striped": lambda: [*striped.tables(striped.judged()), striped.skipped()],
    "ring": ring.tables,
    "distflash": distflash.tables,
    "burst": burst.tables,
    "charts": validation.tables,
}
