"""The papers whose numbers are reproduced, by name."""

from collections.abc import Callable, Mapping

from ringloom.reproduce import validation
from ringloom.reproduce.papers import burst, distflash, ring, striped
from ringloom.reproduce.tables import Table

NOT_PREDICTED = "Measured but not predicted"
PAPERS: Mapping[str, Callable[[], list[Table]]] = {
    "striped": lambda: [
        *striped.tables(striped.predict_rows()),
        *(striped.skipped_tiles(), striped.missing_results()),
    ],
    "ring": ring.tables,
    "distflash": distflash.tables,
    "burst": burst.tables,
    "charts": lambda: [*validation.tables(), Table(NOT_PREDICTED, validation.context())],
}
